"""The asyncio face of the client: the same names as `oncelog`, as coroutines.

async with oncelog.aio.connect("localhost:7400") as log:
    producer = await log.transactional_producer()
    consumer = await log.consumer(["payments"], group="enricher")
    async for batch in consumer:
        async with producer.transaction(consumer) as tx:
            await tx.send("enriched", b"...", key=b"k")
"""

from __future__ import annotations

from oncelog.aio.access import Access
from oncelog.aio.admin import (
    Admin,
    GroupInfo,
    GroupOffset,
    NodeInfo,
    PartitionInfo,
    TopicInfo,
    TransactionInfo,
)
from oncelog.aio.consumer import Consumer, GroupMetadata
from oncelog.aio.log import Log, connect
from oncelog.aio.outcomes import CommitSeq, ExposedPart
from oncelog.aio.producer import Producer
from oncelog.aio.receipts import Receipt, TableReceipt
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.aio.transactions import Transaction

__all__ = [
    "Access",
    "Admin",
    "CommitSeq",
    "Consumer",
    "ExposedPart",
    "GroupInfo",
    "GroupMetadata",
    "GroupOffset",
    "Log",
    "NodeInfo",
    "PartitionInfo",
    "Producer",
    "Receipt",
    "TableReceipt",
    "TopicInfo",
    "Transaction",
    "TransactionInfo",
    "TransactionalProducer",
    "connect",
]
