"""A query's name as its producer's: which producer a query without the option `producer` is.

Spark tells a task the name of its query in the description of its jobs, and nowhere else. A query
with a name takes it, so that operators see a job by a name that people know, and so that a new
checkpoint takes over what the lost one left open. Queries were named by their ids before, and those
without a name still are.

Invariant (I34): what a query committed is remembered by one producer, which every later run of the
query finds: the last commit's scope is the query's id. So a query whose id already is a producer
that committed for it stays with that; and one that is past its first batch, of which the producer
of its name has no commit, is refused (`QueryNameTaken`): a replay would be written twice. Before
the name's producer is touched, the id's is asked, which no other query has: else two queries of one
name, both with checkpoints of before, would fence each other.

Left out: a query that is renamed while its very first batch is committed and not yet noted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from oncelog_spark.manifest import TransactionKey
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2

if TYPE_CHECKING:
    from oncelog.protocol import Protocol

# Between the name and the rest: a line of text, or of the page that shows it.
LINE_ENDS: Final = ("<br/>", "\n")
# Queries whose id was asked for, per connection.
ASKED_MAX: Final = 1_000
NAME_BYTES_MAX: Final = 255

_committed_by_id: WeakKeyDictionary[Protocol, dict[str, bool]] = WeakKeyDictionary()


class QueryNameTaken(RuntimeError):
    """The producer of the query's name does not know the query's earlier batches."""


def query_name(description: str | None, query_id: str) -> str | None:
    """ "": the query has none; None: the description is not Spark's own, so nobody knows."""
    before, found, _ = (description or "").partition(f"id = {query_id}")
    if not found:
        return None
    for end in LINE_ENDS:
        before = before.removesuffix(end)
    return before.strip()


def default_names(description: str | None, query_id: str) -> tuple[str, str]:
    """Name of the producer of a query that was given none, and the name that queries had before
    theirs counted: "" where that is the same."""
    name = query_name(description, query_id)
    if name is None:
        return query_id, query_id
    if not name or len(name.encode()) > NAME_BYTES_MAX:
        return query_id, ""
    return name, query_id


def resolved(
    protocol: Protocol,
    key: TransactionKey,
    register: Callable[[TransactionKey], coordinator_pb2.InitProducerReply],
) -> TransactionKey:
    """The key with the name that counts: the one of before where the query committed under it.
    `register`: InitProducer of a key's name."""
    if key.name_before in ("", key.producer_name):
        return key
    known = _committed_by_id.setdefault(protocol, {})
    before = replace(key, producer_name=key.name_before, name_before="")
    if before.producer_name not in known:
        try:
            known[before.producer_name] = register(before).last_commit_seq.scope == key.scope
        except errors.PermissionDenied:
            # Then no run of it ever was that producer.
            known[before.producer_name] = False
        if len(known) > ASKED_MAX:
            del known[next(iter(known))]
    return before if known[before.producer_name] else key


def require_known(key: TransactionKey, granted: coordinator_pb2.InitProducerReply) -> None:
    """Raises QueryNameTaken where a later batch of a query has a producer without the earlier."""
    if not key.name_before or key.number == 0 or granted.last_commit_seq.scope == key.scope:
        return
    other = granted.last_commit_seq.scope
    took = f"the last one to commit was query {other}" if other else "it never committed anything"
    raise QueryNameTaken(
        f"batch {key.number} of query {key.scope} would be of producer {key.shown}, by its name, "
        f"but that does not know the query's earlier batches: {took}. If the query was renamed, "
        "give the sink's option `producer` its earlier name (and `transactionalSink` of the "
        "source, where it has one); if two queries have one name, give each a `producer` of its "
        f"own; if this is the first batch that it writes, give it `producer` {key.shown}"
    )
