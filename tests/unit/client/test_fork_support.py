"""gRPC's fork handlers stay away from users' programs: they crash forked children now and then."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# What the variable is when grpc itself comes in: later it is not looked at.
SEEN = """
import builtins, os
real = builtins.__import__
def look(name, *arguments):
    if name == "grpc" and not seen:
        seen.append(os.environ.get("GRPC_ENABLE_FORK_SUPPORT"))
    return real(name, *arguments)
seen = []
builtins.__import__ = look
import {module}
print(seen[0])
"""


@pytest.mark.parametrize(
    "module", ["oncelog", "oncelog.aio", "oncelog.protocol", "oncelogpb.calls"]
)
@pytest.mark.parametrize(("given", "left"), [(None, "false"), ("true", "true")])
def test_who_does_not_say_gets_no_fork_handlers(module: str, given: str | None, left: str) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"
    }
    if given is not None:
        environment["GRPC_ENABLE_FORK_SUPPORT"] = given
    program = subprocess.run(
        [sys.executable, "-c", SEEN.format(module=module)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert program.stdout.strip() == left
