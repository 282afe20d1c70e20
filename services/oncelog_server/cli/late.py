"""Modules that take long to import, for whoever uses them in many places and not for his help."""

from __future__ import annotations

import importlib
from typing import Any

from oncelog_server.cli import interrupts


class Late:
    """Stands for a module, and imports it when something of it is wanted."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        with interrupts.importing():
            module = importlib.import_module(self._name)
        return getattr(module, attribute)
