"""Files are shared by connections and journals."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys

import pytest

from oncelog_server.runtime import open_files

RAISES = """
import resource
from oncelog_server.runtime import open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
assert open_files.raise_limit() == 128
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (128, 128)
assert open_files.raise_limit() == 128
"""


def test_a_process_takes_what_it_may_have() -> None:
    subprocess.run([sys.executable, "-c", RAISES], check=True)


@pytest.mark.parametrize(
    ("wanted", "files", "given"),
    [
        (8_192, 65_536, 8_192),
        (8_192, 1_024, 512),
        (8_192, resource.RLIM_INFINITY, 8_192),
        (5, 1, 1),
    ],
)
def test_connections_leave_files_to_journals(wanted: int, files: int, given: int) -> None:
    assert open_files.for_connections(wanted, files) == given


def test_open_files_are_counted() -> None:
    before = open_files.count()
    with socket.socket(), socket.socket():
        assert open_files.count() == before + 2


@pytest.mark.parametrize(
    ("files", "given"), [(20_000, 5_000), (3, 1), (resource.RLIM_INFINITY, sys.maxsize)]
)
def test_files_of_logs_that_rest_have_a_quarter_of_them(files: int, given: int) -> None:
    assert open_files.for_disk(files) == given
