"""Which way a consumer reads ahead."""

from __future__ import annotations

from collections.abc import Mapping

from oncelog._core.deletions import Deletions
from oncelog._core.positions import Positions
from oncelog._core.routing import PartitionKey
from oncelog.aio.fetching import Prefetcher
from oncelog.aio.offsets import isolation_of
from oncelog.batch import TopicPartition
from oncelog.options import ConsumerOptions
from oncelog.protocol import AsyncProtocol


def prefetcher_for(
    protocol: AsyncProtocol,
    options: ConsumerOptions,
    positions: Positions,
    names: Mapping[PartitionKey, TopicPartition],
    deletions: Deletions,
) -> Prefetcher:
    """Of committed records in the order that leaders or the consumer make, or of everything."""
    if options.delivery == "buffered":
        # Late: it needs files and locks of an operating system that has them.
        from oncelog.aio.buffering import BufferedPrefetcher

        return BufferedPrefetcher(
            protocol,
            positions,
            names,
            bytes_max=options.prefetch_bytes_max,
            memory_bytes_max=options.buffer_memory_bytes,
            directory=options.buffer_dir,
            deletions=deletions,
        )
    return Prefetcher(
        protocol,
        positions,
        names,
        isolation=isolation_of(options),
        bytes_max=options.prefetch_bytes_max,
        deletions=deletions,
    )
