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
from oncelog.aio.across import TransactionsAcross, WholeTransaction
from oncelog.aio.admin import Admin, NodeInfo, PartitionInfo, TopicInfo
from oncelog.aio.admin_transactions import TransactionInfo
from oncelog.aio.consumer import Consumer
from oncelog.aio.feeding import GroupMetadata
from oncelog.aio.log import Log, connect
from oncelog.aio.outcomes import CommitSeq, ExposedPart
from oncelog.aio.producer import Producer
from oncelog.aio.receipts import Receipt, TableReceipt
from oncelog.aio.table_view import TableChanges, TableView
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.aio.transactions import Transaction
from oncelog.aio.units import CommittedTransaction, Transactions
from oncelog.groups import (
    ConsumerPosition,
    GroupClaim,
    GroupDescription,
    GroupInfo,
    GroupOffset,
    LastCommit,
    MemberInfo,
    OffsetReset,
    OutgrownTopic,
    Rows,
    Saved,
    Shift,
)

__all__ = [
    "Access",
    "Admin",
    "CommitSeq",
    "CommittedTransaction",
    "Consumer",
    "ConsumerPosition",
    "ExposedPart",
    "GroupClaim",
    "GroupDescription",
    "GroupInfo",
    "GroupMetadata",
    "GroupOffset",
    "LastCommit",
    "Log",
    "MemberInfo",
    "NodeInfo",
    "OffsetReset",
    "OutgrownTopic",
    "PartitionInfo",
    "Producer",
    "Receipt",
    "Rows",
    "Saved",
    "Shift",
    "TableChanges",
    "TableReceipt",
    "TableView",
    "TopicInfo",
    "Transaction",
    "TransactionInfo",
    "TransactionalProducer",
    "Transactions",
    "TransactionsAcross",
    "WholeTransaction",
    "connect",
]
