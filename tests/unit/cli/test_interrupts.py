"""Ctrl-C before a command has begun: a quiet end."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

BEGINNING = """
import os, signal, sys

# Whoever runs this in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)


sys.meta_path.insert(0, Interrupting())
import oncelog_server.cli.__main__ as entry
"""


def _ran(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("module", ["click", "oncelog_server.cli.session", "grpc"])
def test_an_interrupt_while_modules_are_imported_ends_it_without_a_word(module: str) -> None:
    ran = _ran(BEGINNING.format(module=module) + "entry.main(['topic', 'list'])")
    # A shell shows it as 130.
    assert (ran.returncode, ran.stdout, ran.stderr) == (-signal.SIGINT, "", "")


def test_a_command_that_runs_hears_an_interrupt() -> None:
    code = BEGINNING.format(module="none") + (
        "from oncelog_server.cli.app import oncelog\n"
        "oncelog.get_command(None, 'topic')\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )
    assert _ran(code).stdout == "True\n"


def test_who_ignores_interrupts_goes_on_ignoring_them() -> None:
    code = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "import oncelog_server.cli.__main__\n"
        "from oncelog_server.cli.app import oncelog\n"
        "oncelog.get_command(None, 'topic')\n"
        "print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)\n"
    )
    assert _ran(code).stdout == "True\n"
