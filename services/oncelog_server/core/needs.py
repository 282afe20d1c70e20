"""What each RPC needs of its caller: the shape of the tables that every role keeps
(`<role>/access`), and topics by name, for calls name them by id. PURE.

A table has one entry per RPC, by its name in snake case. An RPC without one is refused, and a test
names it (tests/tidy/test_access_tables.py). What an entry asks for is judged in the turn of the
loop in which the handler begins, so nothing can change between the two.

A request of the wrong shape needs nothing: its handler refuses it. One that names more than its
handler takes is refused here by the same limit (`require_few`), for judging takes time, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from oncelog_server.core.access import Need, ResourceKind, Verb
from oncelog_server.core.ids import CONTROL_TOPIC_IDS, TopicId
from oncelog_server.core.ports import Call, ClusterMetadata
from oncelog_server.core.wire import TOPIC_ID_BYTES
from oncelogpb.errors import OncelogError, TooLarge, Unavailable, UnknownTopic

# Topics of which it is remembered that they are gone, and names that are kept at hand.
TOPICS_KEPT: Final = 10_000
# Topics of one call that etcd is asked about.
UNHEARD_MAX: Final = 1_000

# Of an item: what it needs, why it is refused whoever asks, or nothing.
ItemNeed = Need | OncelogError | None
# Raise what the handler would say where it cannot be told what is needed (NOT_LEADER, ...).
Needs = Callable[[Any, Call], Iterable[Need]]
Items = Callable[[Any, Call], Sequence[ItemNeed]]
# Whether the caller of this call may.
Sees = Callable[[Need], bool]
# Takes out of a reply, in place, what its caller may not see.
Shown = Callable[[Any, Sees], None]


def _nothing(request: Any, call: Call) -> Iterable[Need]:
    return ()


def always(request: Any) -> bool:
    """Every such call is an admin call."""
    return True


@dataclass(frozen=True, slots=True)
class Entry:
    """What one RPC needs. Whoever has an identity may make a call that needs nothing."""

    # Of the call as a whole.
    needs: Needs = _nothing
    # Of its items, in their order: those that are refused are in `Call.refused`, by their place,
    # and the handler answers for each of them.
    items: Items | None = None
    shown: Shown | None = None
    # Services make it on behalf of callers whose rights they have judged, or for metrics.
    services_may: bool = False
    # Its reply is data, and may be long in coming: it is judged again where the rules changed.
    gives_data: bool = False
    # Whether a request is an admin call, which is written into the audit log however it ends. None:
    # it never is; what is refused is always written.
    audited: Callable[[Any], bool] | None = None


def serving(method: str) -> Entry:
    """For services alone."""
    need = Need(Verb.SERVE, ResourceKind.CLUSTER, method)
    return Entry(lambda request, call: (need,))


def operating(method: str) -> Entry:
    """For operators alone, and each call is written down."""
    need = Need(Verb.OPERATE, ResourceKind.CLUSTER, method)
    return Entry(lambda request, call: (need,), audited=always)


def watching(method: str) -> Entry:
    """For operators alone. It changes nothing and is called all the time (`oncelog cluster status`,
    each process): only refusals are written down."""
    return replace(operating(method), audited=None)


class UnheardTopics(Exception):
    """Topics that this process does not know: not yet, or no more."""

    def __init__(self, topics: TopicNames, topic_ids: Sequence[TopicId]) -> None:
        super().__init__(f"{len(topic_ids)} topics")
        self.topics = topics
        self.topic_ids = topic_ids


class TopicNames:
    """Names by topic id. An id belongs to one name for ever, so what was found is kept."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._needs: dict[tuple[Verb, bytes], Need] = {}
        self._gone: dict[TopicId, None] = {}

    def need(self, verb: Verb, topic_id: bytes) -> Need | None:
        """None where this process knows no such topic, or the id is none."""
        key = (verb, topic_id)
        known = self._needs.get(key)
        if known is not None:
            return known
        topic = self._metadata.topic_by_id(TopicId(topic_id))
        if topic is None:
            return None
        if len(self._needs) >= TOPICS_KEPT:
            self._needs.clear()
        need = self._needs[key] = Need(verb, ResourceKind.TOPIC, topic.name)
        return need

    def needs(self, verb: Verb, topic_ids: Iterable[bytes]) -> list[Need]:
        """Of each topic once. Control topics need nothing here: who may write to them is asked
        where that is done. Nor does a topic that is gone: nothing can be done to it any more.
        Raises UnheardTopics; UnknownTopic where there are so many that nobody ever knew them."""
        found: list[Need] = []
        unheard: list[TopicId] = []
        for topic_id in dict.fromkeys(topic_ids):
            if topic_id in _CONTROL_IDS or len(topic_id) != TOPIC_ID_BYTES:
                continue
            need = self.need(verb, topic_id)
            if need is not None:
                found.append(need)
            elif topic_id not in self._gone:
                unheard.append(TopicId(topic_id))
        if len(unheard) > UNHEARD_MAX:
            raise UnknownTopic(
                f"{len(unheard)} topics that are not known here, one with id {unheard[0].hex()}",
                topic_id=unheard[0].hex(),
            )
        if unheard:
            raise UnheardTopics(self, unheard)
        return found

    async def hear(self, topic_ids: Iterable[TopicId]) -> None:
        """Returns once each of them is known, or known to be gone. Raises Unavailable where one is
        neither: the caller heard of it before this process did."""
        for topic_id in topic_ids:
            if not await self._metadata.is_gone(topic_id):
                raise Unavailable(
                    f"this process has not heard of the topic with id {topic_id.hex()} yet; try "
                    "again"
                )
            if len(self._gone) >= TOPICS_KEPT:
                self._gone.clear()
            self._gone[topic_id] = None


_CONTROL_IDS: Final = frozenset(CONTROL_TOPIC_IDS.values())


def require_few(limit: str, count: int, maximum: int) -> None:
    """Raises TooLarge."""
    if count > maximum:
        raise TooLarge(
            f"{count} are above {limit} = {maximum}; send fewer at once",
            limit=limit,
            maximum=maximum,
        )


def keep(field: Any, sees: Callable[[Any], bool]) -> None:
    """Takes what is not seen out of a repeated field, in place."""
    kept = [item for item in field if sees(item)]
    if len(kept) < len(field):
        del field[:]
        field.extend(kept)


Tables = Mapping[str, Mapping[str, Entry]]
