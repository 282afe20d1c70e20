"""Keys stay where Kafka had them: vectors of librdkafka and of Kafka's Java client."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._core.partitioners import assign, crc32_hashes, murmur2_hashes

# Kafka, clients/src/test/java/org/apache/kafka/common/utils/UtilsTest.java.
MURMUR2_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), MURMUR2_VECTORS.items())
def test_murmur2_is_the_one_of_kafkas_java_client(key: bytes, expected: int) -> None:
    assert int(murmur2_hashes([key])[0]) == expected & 0x7FFFFFFF


def test_crc32_is_the_consistent_partitioner_of_librdkafka() -> None:
    # The check value of CRC-32 (IEEE), which librdkafka's rd_crc32 is.
    assert int(crc32_hashes([b"123456789"])[0]) == 0xCBF43926
    assert int(crc32_hashes([b""])[0]) == 0


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30))
def test_a_chunk_hashes_as_its_keys_one_by_one(keys: list[bytes]) -> None:
    assert [int(h) for h in murmur2_hashes(keys)] == [int(murmur2_hashes([k])[0]) for k in keys]
    assert [int(h) for h in crc32_hashes(keys)] == [zlib.crc32(k) for k in keys]


def test_a_chosen_partition_beats_the_key_and_the_key_beats_the_sticky_one() -> None:
    where = assign(
        [b"123456789", None, b"123456789", None, b""],
        [None, None, 3, 4, None],
        partitions=7,
        sticky=5,
        key_hash=crc32_hashes,
    )
    assert where.tolist() == [0xCBF43926 % 7, 5, 3, 4, 0]
