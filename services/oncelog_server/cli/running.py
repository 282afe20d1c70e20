"""Where the `oncelog up` over a folder is found: it writes `running.json` while it runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

DEFAULT_FOLDER: Final = ".oncelog"
RUNNING_FILE: Final = "running.json"


def running_bootstrap(path: Path) -> str | None:
    """The addresses of the `oncelog up` that runs over this folder now."""
    running = read_running(path)
    return running.get("bootstrap") if running and _is_alive(running.get("pid")) else None


def read_running(path: Path) -> dict[str, Any] | None:
    """What the last one wrote that runs, or was killed."""
    try:
        running = json.loads((path / RUNNING_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return running if isinstance(running, dict) else None


def _is_alive(pid: Any) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
