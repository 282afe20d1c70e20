"""A request that may be sent again, and what may still be said of it once an answer was lost.

A refusal promises that nothing happened: of the sending that it answers, and of no other. Once an
answer was lost, the request may stand, and no later refusal takes that back: a commit that took
effect is refused PRODUCER_FENCED when it is repeated after a take-over. So whoever sends a request
more than once keeps one `Doubt` with it, from the first sending to the last, and says nothing about
a failure but what the doubt tells:

    doubt = Doubt("coordinator.abort_transaction", request)
    while True:
        try:
            return await call(request)
        except OncelogError as error:
            if is_final(error) or time_is_over():
                doubt.give_up(error)
            doubt.as_reported(error)

Each failure passes through `told` (or `give_up`, which raises what `told` returns): the first makes
the doubt, the last ends it. `FACTS` is the table of the exceptions: refusals that say, although an
answer was lost before, that nothing of the request stands and that nothing of it will.

What makes a refusal a fact: the server looks whether it knows the request *before* it judges what
it then refuses; and the ground of the refusal does not pass, for a copy of the lost request may
still be on its way (the network delays, handlers wait). NOT_LEADER, THROTTLED, DISK_FULL pass.
Refusals of rights are never facts: rights are judged before anything is looked up.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, NoReturn

from oncelogpb.errors import BY_REASON, OncelogError, Unavailable, UnknownOutcome
from oncelogpb.ids import show_named

RIGHTS: Final = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})

# Calls that change nothing which their caller must know about: their errors are what they are.
READS: Final = frozenset(
    {
        "cluster.get_metadata",
        "cluster.get_config",
        "cluster.list_quotas",
        "cluster.list_rules",
        "cluster.test_access",
        "coordinator.get_transaction",
        "coordinator.list_transactions",
        # Announces a partition that takes part; asked again until a verdict comes.
        "coordinator.ask_transactions",
        "offset_manager.fetch_offsets",
        "offset_manager.list_groups",
        "partition_leader.fetch",
        "partition_leader.subscribe",
        "partition_leader.list_offsets",
        "partition_leader.describe_topics",
        "partition_leader.list_topics",
        "partition_leader.describe_journals",
        "replication.describe_replicas",
        "replication.fetch_snapshot",
    }
)


class Facts(NamedTuple):
    """Refusals of one call that stand although an answer was lost, and why they do."""

    reasons: frozenset[str]
    because: str


NONE: Final = Facts(frozenset(), "the server does not know a repetition: look at what it changed")

FACTS: Final[dict[str, Facts]] = {
    "coordinator.init_producer": Facts(
        frozenset({"PRODUCER_FENCED"}),
        "a known instance id is answered first; one that was replaced stays replaced, and all that "
        "it had begun is decided",
    ),
    "coordinator.begin_transaction": Facts(
        frozenset({"PRODUCER_FENCED"}),
        "who fenced this generation has ended what it began, and nobody wrote under a TxId that "
        "nobody was told",
    ),
    # Not PRODUCER_FENCED, not UNKNOWN_TRANSACTION: outcomes are not kept for ever, fences are.
    "coordinator.commit_transaction": Facts(
        frozenset({"TRANSACTION_ENDED", "PRODUCER_MISMATCH"}),
        "a transaction has one outcome for ever, and one owner",
    ),
    "coordinator.abort_transaction": Facts(
        frozenset({"TRANSACTION_ENDED", "PRODUCER_MISMATCH", "PRODUCER_FENCED"}),
        "a transaction has one outcome for ever, and one owner; a fence has decided what was open",
    ),
    # Not PRODUCER_FENCED, STALE_REQUEST_ID or DUPLICATE_SEQUENCE: the last numbers are remembered,
    # and ours may be an earlier one. Not OUT_OF_ORDER_SEQUENCE: a late copy may fill the gap.
    "coordinator.transact": Facts(
        frozenset(
            {
                "TRANSACTION_ENDED",
                "STALE_POSITION",
                "ILLEGAL_GENERATION",
                "UNKNOWN_MEMBER",
                "FENCED_INSTANCE",
                "INVALID_TIMEOUT",
            }
        ),
        "they are the old answer of this request number: what the offset manager refused is "
        "aborted, and a number is used once; or its chain is broken, and stays so",
    ),
    "offset_manager.commit_offsets": NONE,
    "offset_manager.commit_transaction_offsets": Facts(
        frozenset(reason for reason, kind in BY_REASON.items() if not kind.rule.retriable) - RIGHTS,
        "offsets under this TxId that are known are answered first; what stands is pending under "
        "the TxId alone, and whoever is refused aborts that",
    ),
    "offset_manager.delete_group": NONE,
    "offset_manager.describe_group": NONE,
    "offset_manager.remove_member": NONE,
    "offset_manager.reset_offsets": NONE,
    "offset_manager.claim_group": NONE,
    "offset_manager.heartbeat": NONE,
    "partition_leader.produce": Facts(
        frozenset({"TRANSACTION_ENDED", "PRODUCER_FENCED"}),
        "only batches of a transaction are refused so; what stands of one that has ended is not "
        "seen, for its manifest counts what was acknowledged",
    ),
    "partition_leader.create_topic": NONE,
    "partition_leader.alter_topic": NONE,
    "partition_leader.delete_topic": NONE,
    "partition_leader.resolve_transaction": NONE,
    "partition_leader.truncate_partition": NONE,
    "participant.write_markers": Facts(
        frozenset(BY_REASON),
        "a marker is owed until a reply says what became of it; a refusal only says when and where "
        "to send it again",
    ),
    "cluster.unclean_elect": NONE,
    "cluster.balance_leaders": NONE,
    "cluster.reassign_partitions": NONE,
    "cluster.add_rules": NONE,
    "cluster.remove_rules": NONE,
    "cluster.set_quotas": NONE,
    "cluster.remove_quotas": NONE,
}


class Doubt:
    """Of one request. Not for two: what one of them left in doubt is not of the other."""

    __slots__ = ("_lost", "_method", "_request")

    def __init__(self, method: str, request: Any = None) -> None:
        """`method` is "service.rpc_in_snake_case". An UNKNOWN_OUTCOME carries the names by which
        `request` (of protobuf) can be asked for later: `names_of`."""
        self._method = method
        self._request = request
        self._lost = False

    @classmethod
    def inherited(cls, method: str, request: Any = None) -> Doubt:
        """Of a request that somebody else may have sent before: the leader before this one."""
        doubt = cls(method, request)
        doubt._lost = True
        return doubt

    @property
    def lost(self) -> bool:
        """True from the first failure on that does not promise that nothing happened."""
        return self._lost

    def as_reported(self, error: OncelogError) -> OncelogError:
        """Takes in how a sending failed; returns what its caller is told if it was the last one:
        the error itself, or UNKNOWN_OUTCOME with it as its cause."""
        if self._method in READS:
            return _harmless(self._method, error)
        if error.may_have_applied:
            self._lost = True
            return self._named(error)
        if not self._lost or error.reason in facts_of(self._method).reasons:
            return error
        told = UnknownOutcome(f"{self._method}: an answer was lost, and then: {error}")
        told.__cause__ = error
        return self._named(told)

    def give_up(self, error: OncelogError) -> NoReturn:
        """Raises what `told` returns."""
        told = self.as_reported(error)
        if told is error:
            raise error
        raise told from error

    def _named(self, error: OncelogError) -> OncelogError:
        if isinstance(error, UnknownOutcome):
            for key, value in names_of(self._request).items():
                error.metadata.setdefault(key, str(show_named(key, value)))
        return error


def facts_of(method: str) -> Facts:
    """Raises KeyError for a call that the table does not name: it has to."""
    return FACTS[method]


def names_of(request: Any) -> dict[str, object]:
    """What tells the transaction of this request, or its producer's request, from all others."""
    names: dict[str, object] = {}
    if getattr(request, "tx_id", 0):
        names["tx_id"] = request.tx_id
    if getattr(request, "request_number", 0):
        names["producer_id"] = request.producer.producer_id
        names["generation"] = request.producer.generation
        names["request_number"] = request.request_number
    return names


def _harmless(method: str, error: OncelogError) -> OncelogError:
    """A lost answer to a question is no doubt: nothing happened."""
    if not isinstance(error, UnknownOutcome):
        return error
    told = Unavailable(f"{method}: {error.message}", **error.metadata)
    told.__cause__ = error
    return told
