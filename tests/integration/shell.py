"""The `oncelog` command as scripts use it: `--json`, exit codes, the cluster in the environment.

It runs in this process: a process for each command would take minutes on a busy machine.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from click.testing import CliRunner

from oncelog_server.cli.app import oncelog

REFUSED, WRONG_USAGE, UNREACHABLE = 1, 2, 3


class Done(NamedTuple):
    """A command that has ended."""

    exit_code: int
    stdout: str
    stderr: str


class Shell:
    """Commands against one cluster."""

    bootstrap: str

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def ask(self, *words: str, given: str = "") -> Any:
        """What `oncelog WORDS... --json` prints, as one value."""
        done = self.run(*words, given=given)
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    def lines(self, *words: str) -> list[Any]:
        """The same of a command that prints a value per line."""
        done = self.run(*words)
        assert done.exit_code == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def refused(self, *words: str, code: int = REFUSED) -> str:
        """The reason."""
        done = self.run(*words)
        assert done.exit_code == code, f"{done.stdout} {done.stderr}"
        return str(json.loads(done.stderr.splitlines()[-1])["error"]["reason"])

    def run(self, *words: str, given: str = "") -> Done:
        result = CliRunner().invoke(
            oncelog,
            [*words, "--json"],
            input=given,
            env={"ONCELOG_BOOTSTRAP": self.bootstrap},
        )
        if not isinstance(result.exception, SystemExit | None):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)
