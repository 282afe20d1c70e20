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
a cluster for tests, `oncelog.protocol` the calls themselves. Consumers of one group share its
partitions: start the same program as often as you like.
"""

from __future__ import annotations

from oncelog import aio, errors
from oncelog._core.deliveries import Delivery
from oncelog._plain_access import Access
from oncelog._plain_admin import Admin
from oncelog._plain_table import TableChanges, TableView
from oncelog._plain_units import Transactions, TransactionsAcross
from oncelog.access import AccessRule, AccessVerdict, Pattern, Quota
from oncelog.aio.across import WholeTransaction
from oncelog.aio.admin import NodeInfo, PartitionInfo, TopicInfo
from oncelog.aio.admin_transactions import TransactionInfo
from oncelog.aio.feeding import GroupMetadata
from oncelog.aio.outcomes import CommitSeq, ExposedPart
from oncelog.aio.receipts import Receipt, TableReceipt
from oncelog.aio.truncating import Truncation
from oncelog.aio.units import CommittedTransaction
from oncelog.aio.unsent import UnsentRecordsWarning
from oncelog.batch import Batch, Record, TopicPartition
from oncelog.errors import OncelogError
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
from oncelog.options import (
    ConnectOptions,
    ConsumerOptions,
    ProducerOptions,
    TableOptions,
    Tls,
)
from oncelog.plain import (
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
    "CommittedTransaction",
    "ConnectOptions",
    "Consumer",
    "ConsumerOptions",
    "ConsumerPosition",
    "Delivery",
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
    "OncelogError",
    "OutgrownTopic",
    "PartitionInfo",
    "Pattern",
    "Producer",
    "ProducerOptions",
    "Quota",
    "Receipt",
    "Record",
    "Rows",
    "Saved",
    "Shift",
    "TableChanges",
    "TableOptions",
    "TableReceipt",
    "TableView",
    "Tls",
    "TopicInfo",
    "TopicPartition",
    "Transaction",
    "TransactionInfo",
    "TransactionalProducer",
    "Transactions",
    "TransactionsAcross",
    "Truncation",
    "UnsentRecordsWarning",
    "WholeTransaction",
    "aio",
    "connect",
    "errors",
]
