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
