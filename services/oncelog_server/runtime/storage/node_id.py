"""The id of a node: of its data directory, drawn at its first start."""

from __future__ import annotations

from collections.abc import Callable
from errno import EIO
from typing import Final

from oncelog_server.runtime.storage.port import Disk, read_if_readable

NODE_FILE: Final = "node_id"
NODE_ID_BYTES: Final = 4


def load_node_id(disk: Disk, random_bytes: Callable[[int], bytes]) -> str:
    if not disk.exists(NODE_FILE):
        disk.replace_file(NODE_FILE, random_bytes(NODE_ID_BYTES).hex().encode())
    return read_node_id(disk)


def read_node_id(disk: Disk) -> str:
    """No CRC stands over it. Raises OSError."""
    data = read_if_readable(disk, NODE_FILE)
    if data is None:
        raise OSError(EIO, "the disk cannot read it", NODE_FILE)
    return data.decode()
