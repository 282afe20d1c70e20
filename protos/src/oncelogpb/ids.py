"""How ids are shown to people: in messages of errors, in logs, by the `oncelog` command. One form
each, so that what one of them prints can be searched in the others, and given to `oncelog tx`.

In protobuf, in an error's metadata and in JSON that programs read they stay what they are.
"""

from __future__ import annotations


def show_id(identity: int) -> str:
    """A TxId or a producer id: 16 hexadecimal digits, of which the first four are the partition of
    the transaction journal that it is of: 0003000000000005."""
    return f"{identity:016x}"


def show_generation(generation: int) -> str:
    """7.3 for epoch 7, counter 3."""
    return f"{generation >> 32}.{generation & 0xFFFFFFFF}"
