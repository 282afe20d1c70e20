"""The Python client of Oncelog, the transactional log.

    import oncelog

    with oncelog.connect("localhost:7400") as log:
        producer = log.transactional_producer()
        consumer = log.consumer(["payments"], group="enricher")
        for batch in consumer:
            with producer.transaction(consumer) as tx:
                for record in batch:
                    tx.send("enriched", value=record.value, key=record.key)

`oncelog.aio` has the same names for asyncio, `oncelog.errors` what may be raised, `oncelog.testing`
a cluster for tests, `oncelog.protocol` the calls themselves.

Not promised: consumers of one group do not share partitions yet; each reads what it is given.
"""

from __future__ import annotations

from oncelog import aio, errors
from oncelog._core.deliveries import Delivery
from oncelog._plain_access import Access
from oncelog.access import AccessRule, AccessVerdict, Pattern, Quota
from oncelog.aio.admin import (
    GroupInfo,
    GroupOffset,
    NodeInfo,
    PartitionInfo,
    TopicInfo,
    TransactionInfo,
)
from oncelog.aio.consumer import GroupMetadata
from oncelog.aio.outcomes import CommitSeq, ExposedPart
from oncelog.aio.receipts import Receipt, TableReceipt
from oncelog.aio.unsent import UnsentRecordsWarning
from oncelog.batch import Batch, Record, TopicPartition
from oncelog.errors import OncelogError
from oncelog.options import ConnectOptions, ConsumerOptions, ProducerOptions, Tls
from oncelog.plain import (
    Admin,
    Consumer,
    Log,
    Producer,
    Transaction,
    TransactionalProducer,
    connect,
)

__version__ = "0.1.0"

__all__ = [
    "Access",
    "AccessRule",
    "AccessVerdict",
    "Admin",
    "Batch",
    "CommitSeq",
    "ConnectOptions",
    "Consumer",
    "ConsumerOptions",
    "Delivery",
    "ExposedPart",
    "GroupInfo",
    "GroupMetadata",
    "GroupOffset",
    "Log",
    "NodeInfo",
    "OncelogError",
    "PartitionInfo",
    "Pattern",
    "Producer",
    "ProducerOptions",
    "Quota",
    "Receipt",
    "Record",
    "TableReceipt",
    "Tls",
    "TopicInfo",
    "TopicPartition",
    "Transaction",
    "TransactionInfo",
    "TransactionalProducer",
    "UnsentRecordsWarning",
    "aio",
    "connect",
    "errors",
]
