"""What the kernel says is believed."""

from __future__ import annotations

import os

import pytest

from oncelog_server.runtime.storage import syscalls


def test_i25_a_failed_syncfs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(syscalls._libc, "syncfs"):
        pytest.skip("this system has no syncfs")
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    monkeypatch.setattr(syscalls, "_kernel", lambda: syscalls.SYNCFS_KERNEL_MIN)
    syncfs = syscalls.syncfs_call("/data")
    assert syncfs is not None
    with pytest.raises(OSError, match=r"Bad file descriptor.*/data"):
        syncfs(-1)


@pytest.mark.parametrize(
    ("release", "is_used"),
    [("5.7.19", False), ("5.8.0", False), ("5.16.20-1", False), ("5.17.0", True), ("6.1.0", True)],
)
def test_i25_syncfs_is_used_only_where_it_reports_every_error(
    monkeypatch: pytest.MonkeyPatch, release: str, is_used: bool
) -> None:
    if not hasattr(syscalls._libc, "syncfs"):
        pytest.skip("this system has no syncfs")
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    names = ("Linux", "node", release, "#1", "x86_64")
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(names))
    assert (syscalls.syncfs_call("/data") is not None) == is_used
