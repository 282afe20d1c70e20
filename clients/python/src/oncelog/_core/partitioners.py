"""Which partition a key belongs to: the two functions that Kafka's clients use, so that keys stay
where Kafka had them.

    crc32     librdkafka's `consistent`: CRC-32 of the key, modulo the partitions
    murmur2   Kafka's Java client: (murmur2 of the key, sign bit cleared), modulo the partitions

Both hash a whole chunk at once. A record without a key has no place of its own: it goes to the
sticky partition of its chunk (KIP-480), which moves on with every chunk. An empty key is a key.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

# Hashes of keys, one uint32 each, before the modulo.
Hashes = npt.NDArray[np.uint32]
KeyHash = Callable[[Sequence[bytes]], Hashes]

MURMUR2_SEED: Final = 0x9747B28C
MURMUR2_MIX: Final = 0x5BD1E995
MURMUR2_SHIFT: Final = 24
SIGN_CLEARED: Final = 0x7FFFFFFF


def crc32_hashes(keys: Sequence[bytes]) -> Hashes:
    """CRC-32 (IEEE) of each key."""
    return np.fromiter(map(zlib.crc32, keys), dtype=np.uint32, count=len(keys))


def murmur2_hashes(keys: Sequence[bytes]) -> Hashes:
    """Kafka's `Utils.toPositive(Utils.murmur2(key))` of each key. Keys of one length are hashed
    together, column by column, so the work in Python is per length and not per key."""
    lengths = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
    hashes = np.empty(len(keys), dtype=np.uint32)
    for length in np.unique(lengths):
        chosen = np.flatnonzero(lengths == length)
        joined = b"".join([keys[index] for index in chosen.tolist()])
        matrix = np.frombuffer(joined, dtype=np.uint8).reshape(len(chosen), int(length))
        hashes[chosen] = _murmur2_of_equal_lengths(matrix)
    return hashes & np.uint32(SIGN_CLEARED)


def assign(
    keys: Sequence[bytes | None],
    chosen: Sequence[int | None],
    *,
    partitions: int,
    sticky: int,
    key_hash: KeyHash,
) -> npt.NDArray[np.uint32]:
    """The partition of each record: the chosen one, else the one of its key, else `sticky`.

    The caller has checked that chosen partitions exist.
    """
    present = [key for key in keys if key is not None]
    if len(present) == len(keys):
        where = key_hash(present) % np.uint32(partitions)
    else:
        where = np.full(len(keys), sticky, dtype=np.uint32)
        keyed = [index for index, key in enumerate(keys) if key is not None]
        where[keyed] = key_hash(present) % np.uint32(partitions)
    if chosen.count(None) != len(chosen):
        for index, partition in enumerate(chosen):
            if partition is not None:
                where[index] = partition
    return where


PARTITIONERS: Final[dict[str, KeyHash]] = {"crc32": crc32_hashes, "murmur2": murmur2_hashes}


def _murmur2_of_equal_lengths(matrix: npt.NDArray[np.uint8]) -> Hashes:
    """One row per key. uint32 arithmetic wraps, which is what the algorithm wants."""
    rows, length = matrix.shape
    mix, shift = np.uint32(MURMUR2_MIX), np.uint32(MURMUR2_SHIFT)
    digest = np.full(rows, (MURMUR2_SEED ^ length) & 0xFFFFFFFF, dtype=np.uint32)
    whole = length - length % 4
    words = np.ascontiguousarray(matrix[:, :whole]).view("<u4")
    for column in range(whole // 4):
        word = words[:, column] * mix
        word ^= word >> shift
        word *= mix
        digest *= mix
        digest ^= word
    if length % 4:
        for byte in range(length % 4):
            digest ^= matrix[:, whole + byte].astype(np.uint32) << np.uint32(8 * byte)
        digest *= mix
    digest ^= digest >> np.uint32(13)
    digest *= mix
    digest ^= digest >> np.uint32(15)
    return digest
