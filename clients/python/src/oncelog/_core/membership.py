"""A member of a consumer group: what it says in its next heartbeat, what an answer means, and when
it must take itself for dead. Sans-io: time is an argument, in milliseconds of one clock.

    state      event                                   next     what it holds
    ────────────────────────────────────────────────────────────────────────────────────────────
    JOINING    an answer                               MEMBER   what the answer assigns
    MEMBER     an answer                               MEMBER   and what that adds
    MEMBER     no answer for a session                 JOINING  nothing: under a new id
    MEMBER     UNKNOWN_MEMBER, ILLEGAL_GENERATION      JOINING  nothing: under a new id
    JOINING, MEMBER
               not polled for max_poll_interval        LEFT     nothing
    LEFT       polled again                            JOINING  nothing: under a new id
    JOINING    FENCED_INSTANCE with `held_by`,
               and it was no member yet                JOINING  nothing: it names the holder
    any        FENCED_INSTANCE                         FENCED   nothing, for ever

A static member takes its instance over only from whom its join names (ADR 65). One that is new
names the holder that it was told of; one that joins again names its own last id, and so never
fences a process that has taken its place meanwhile.

A member *holds* what it may still process or commit: each partition that an answer assigned, until
it let go of it. What it holds and the last answer did not assign it must let go of: end what it has
begun, then say so, by a heartbeat that does not name it any more.

Invariants:
- every heartbeat names all that is held: the group gives a partition to another only after one that
  does not name it, or after a session without any;
- a session is counted from when the last answered heartbeat was *sent*: the group has heard from us
  then or later, so ours is over before the group's is. What we hold is lost from then on, whatever
  the group thinks;
- after a loss nothing may be committed in the name of what was held before (`require`), until the
  consumer has taken notice of it (`take_loss`);
- an answer to what was asked under another id changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from oncelog._core.routing import PartitionKey
from oncelog.errors import CannotConnect
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2

# The part of a session after which a member that heard nothing takes itself for dead: its clock may
# be slower than the group's.
SESSION_SHARE: Final = 0.95
# Heartbeats within a session, where the group does not say: two may be lost.
HEARTBEATS_PER_SESSION: Final = 3
# A heartbeat that failed is sent again after so long.
AGAIN_MS: Final = 100
# One that was refused for a reason that may last (a right, a limit), after so long.
REFUSED_AGAIN_MS: Final = 1_000
# How long one heartbeat may wait for its answer, at least.
ANSWER_MS_MIN: Final = 500


# Of one id that the group may know still: then the group finds out by itself, after a session.
LEAVES_MAX: Final = 100


class State(Enum):
    JOINING = "joining"
    MEMBER = "member"
    LEFT = "left"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """As the user gave them. See ConsumerOptions."""

    group: str
    instance_id: str = ""
    assignor: str = ""
    client_id: str = ""
    session_timeout_ms: int = 10_000
    max_poll_interval_ms: int = 300_000


class Membership:
    """Of one consumer."""

    def __init__(
        self, settings: MemberSettings, *, draw_id: Callable[[], str], now_ms: float
    ) -> None:
        self._settings = settings
        self._draw_id = draw_id
        self.state = State.JOINING
        self.member_id = draw_id()
        self.generation = 0
        self._topics: Sequence[str] = ()
        # In the order in which they came.
        self._held: dict[PartitionKey, None] = {}
        self._assigned: frozenset[PartitionKey] = frozenset()
        # Names of the topics of what is held.
        self._names: dict[bytes, str] = {}
        self._session_ms: float = settings.session_timeout_ms
        self._interval_ms = self._session_ms / HEARTBEATS_PER_SESSION
        # When the session is over, where nothing is heard; and when the next heartbeat is due.
        self._over_ms = 0.0
        self._due_ms = now_ms
        # An id under which the group may still know us, to be taken back.
        self._leaves: str | None = None
        # When that is said next, and how often it was not heard.
        self._leave_due_ms = 0.0
        self._leaves_unheard = 0
        # Whose place a static member takes by joining.
        self._replaces = ""
        self._was_member = False
        # When the user polled last; None: he does so now.
        self._polled_ms: float | None = now_ms
        self._loss: errors.OncelogError | None = None
        # A refusal that the user must hear of.
        self._trouble: errors.OncelogError | None = None
        # Why the last heartbeat had no answer.
        self._silence: errors.OncelogError | None = None

    # ------------------------------------------------------------------------------ what it holds

    @property
    def held(self) -> list[PartitionKey]:
        """All that it may process or commit."""
        return list(self._held)

    @property
    def may_read(self) -> list[PartitionKey]:
        """What it holds and need not let go of."""
        return [partition for partition in self._held if partition in self._assigned]

    @property
    def must_let_go(self) -> list[PartitionKey]:
        """What it holds and another one shall have."""
        return [partition for partition in self._held if partition not in self._assigned]

    def name_of(self, topic_id: bytes) -> str:
        return self._names.get(topic_id, topic_id.hex())

    def let_go(self, partitions: Iterable[PartitionKey], now_ms: float) -> None:
        """Nothing of them is processed or committed any more: the group is told at once."""
        for partition in partitions:
            del self._held[partition]
        self._due_ms = min(self._due_ms, now_ms)

    def wire(self) -> offset_manager_pb2.GroupMember:
        """For commits."""
        return offset_manager_pb2.GroupMember(
            generation=self.generation,
            member_id=self.member_id,
            instance_id=self._settings.instance_id,
        )

    # ------------------------------------------------------------------------------------ losses

    def require(self) -> None:
        """Raises why nothing that was held may be committed any more."""
        if self._loss is not None:
            if self._trouble is self._loss:
                # Told by this.
                self._trouble = None
            raise copy.copy(self._loss)

    def take_loss(self) -> errors.OncelogError | None:
        """Why all that was held is lost; None where it is not. Whoever asks has taken notice."""
        loss, self._loss = self._loss, None
        return loss

    @property
    def has_trouble(self) -> bool:
        """There is something for `take_trouble`."""
        return self._trouble is not None

    def take_trouble(self) -> errors.OncelogError | None:
        """A refusal that no repetition heals, to be raised to the user."""
        if self.state is State.FENCED:
            return None if self._trouble is None else copy.copy(self._trouble)
        trouble, self._trouble = self._trouble, None
        return trouble

    def not_let_in(self) -> errors.OncelogError:
        """Why it is no member after all this time."""
        if isinstance(self._silence, CannotConnect):
            return copy.copy(self._silence)
        return errors.Unavailable(
            f"nobody let this member into group {self._settings.group!r}"
            + ("" if self._silence is None else f": {self._silence.message}")
        )

    def _lose(self, why: errors.OncelogError) -> None:
        if self._held and self._loss is None:
            self._loss = why
        self._held.clear()
        self._assigned = frozenset()

    # -------------------------------------------------------------------------------------- polls

    def poll_began(self, now_ms: float) -> None:
        """The user waits for records."""
        self.look(now_ms)
        self._polled_ms = None
        if self.state is State.LEFT:
            self._join_anew(now_ms)

    def poll_ended(self, now_ms: float) -> None:
        """He has them, and processes them."""
        self._polled_ms = now_ms

    # --------------------------------------------------------------------------------- heartbeats

    def subscribe(self, topics: Collection[str], now_ms: float) -> None:
        """Wants partitions of these topics, from the next heartbeat on, which is due now where they
        are others than before."""
        wanted = sorted(set(topics))
        if wanted != list(self._topics):
            self._topics = wanted
            self._due_ms = min(self._due_ms, now_ms)

    def look(self, now_ms: float) -> None:
        """Takes itself for dead where it is time."""
        if self.state is State.MEMBER and now_ms >= self._over_ms:
            self._lose(
                errors.UnknownMember(
                    f"consumer group {self._settings.group!r} was not heard for a session of "
                    f"{self._session_ms:g} ms (session_timeout_ms): others may have this member's "
                    "partitions; what was read and not committed is read again, poll goes on"
                )
            )
            if not self._settings.instance_id:
                self._take_back()
            self._join_anew(now_ms)
        limit_ms = self._settings.max_poll_interval_ms
        if self.state not in (State.JOINING, State.MEMBER) or self._polled_ms is None:
            return
        if now_ms - self._polled_ms >= limit_ms:
            error = errors.UnknownMember(
                f"this consumer was not polled for {limit_ms} ms (max_poll_interval_ms): it left "
                f"group {self._settings.group!r}, others have its partitions. Poll more often, "
                "with smaller batches (batch_records_max), or allow more time; the next poll joins "
                "again",
                limit="max_poll_interval_ms",
            )
            self._lose(error)
            self._trouble = self._trouble or error
            self.state = State.LEFT
            self._take_back()
            self._due_ms = now_ms

    def request(self, now_ms: float) -> offset_manager_pb2.HeartbeatRequest | None:
        """The heartbeat that is due; None: none is."""
        self.look(now_ms)
        if self._leaves is not None and now_ms >= self._leave_due_ms:
            return self._leaving(self._leaves)
        if self.state in (State.LEFT, State.FENCED) or now_ms < self._due_ms:
            return None
        return offset_manager_pb2.HeartbeatRequest(
            group=self._settings.group,
            member=self.wire(),
            subscribed_topics=self._topics,
            owned=[partition.wire() for partition in self._held],
            assignor=self._settings.assignor,
            session_timeout_ms=self._settings.session_timeout_ms,
            client_id=self._settings.client_id,
            replaces=self._replaces if self.state is State.JOINING else "",
        )

    def farewell(self) -> offset_manager_pb2.HeartbeatRequest | None:
        """The last heartbeat, on closing. None: a static member keeps its partitions for who comes
        after it under its name; or it is no member."""
        is_known = self.state in (State.JOINING, State.MEMBER)
        leaves = self.member_id if is_known and not self._settings.instance_id else self._leaves
        self.state = State.LEFT
        self._held.clear()
        self._assigned = frozenset()
        return None if leaves is None else self._leaving(leaves)

    def wait_ms(self, now_ms: float) -> float | None:
        """How long until `request` may have something to say, or `look` something to see. None:
        nothing will happen by itself."""
        times = []
        if self._leaves is not None:
            times.append(self._leave_due_ms)
        if self.state in (State.JOINING, State.MEMBER):
            times.append(self._due_ms)
            if self._polled_ms is not None:
                times.append(self._polled_ms + self._settings.max_poll_interval_ms)
        if self.state is State.MEMBER:
            times.append(self._over_ms)
        return max(0.0, min(times) - now_ms) if times else None

    @property
    def answer_ms(self) -> int:
        """How long a heartbeat waits for its answer before it is sent again: however soon the next
        one is due, an offset manager that is slow for a while must be able to answer one."""
        return max(ANSWER_MS_MIN, int(self._session_ms / HEARTBEATS_PER_SESSION))

    def heard(
        self,
        request: offset_manager_pb2.HeartbeatRequest,
        reply: offset_manager_pb2.HeartbeatReply,
        *,
        sent_ms: float,
    ) -> None:
        """An answer to what was sent then."""
        if request.leaving:
            self._has_left(request)
            return
        if not self._is_about(request):
            return
        self.state, self._was_member = State.MEMBER, True
        self._trouble = self._silence = None
        self.generation = reply.member.generation
        self._session_ms = reply.session_timeout_ms or self._settings.session_timeout_ms
        self._interval_ms = reply.heartbeat_interval_ms or self._session_ms / HEARTBEATS_PER_SESSION
        self._over_ms = sent_ms + self._session_ms * SESSION_SHARE
        has_let_go = any(PartitionKey.of(named) not in self._held for named in request.owned)
        self._due_ms = sent_ms + (0 if has_let_go else self._interval_ms)
        if list(request.subscribed_topics) != list(self._topics):
            self._due_ms = sent_ms
        self._names.update((topic.topic_id, topic.name) for topic in reply.topics)
        assigned = [PartitionKey.of(partition) for partition in reply.assignment]
        self._assigned = frozenset(assigned)
        self._held.update(dict.fromkeys(assigned))

    def refused(
        self,
        request: offset_manager_pb2.HeartbeatRequest,
        error: errors.OncelogError,
        now_ms: float,
    ) -> None:
        """It failed, or its answer was lost."""
        if request.leaving:
            self._leave_refused(request, error, now_ms)
            return
        if not self._is_about(request):
            return
        if self._is_told_the_holder(request, error):
            # Who has named this one already does not ask without a pause.
            self._due_ms = now_ms + (AGAIN_MS if request.replaces == self._replaces else 0)
            return
        if self._ends_membership(error, now_ms):
            return
        if _is_silence(error):
            self._silence = error
            self._due_ms = now_ms + AGAIN_MS
        else:
            self._trouble = error
            self._due_ms = now_ms + REFUSED_AGAIN_MS

    def _is_told_the_holder(
        self, request: offset_manager_pb2.HeartbeatRequest, error: errors.OncelogError
    ) -> bool:
        """A process that is new takes over from whoever holds its instance id."""
        holder = error.metadata.get("held_by", "")
        is_fenced = isinstance(error, errors.FencedInstance)
        if not is_fenced or not holder or self._was_member or request.member.generation:
            return False
        self._replaces = holder
        return True

    def _is_about(self, request: offset_manager_pb2.HeartbeatRequest) -> bool:
        """Its answer is. One that comes late brings nobody back who was fenced."""
        is_mine = request.member.member_id == self.member_id
        return is_mine and self.state not in (State.LEFT, State.FENCED)

    def commit_refused(self, error: errors.OncelogError, now_ms: float) -> None:
        """A commit in the name of this member, as it is now."""
        if self._loss is None and self.state is State.MEMBER:
            self._ends_membership(error, now_ms)

    def _ends_membership(self, error: errors.OncelogError, now_ms: float) -> bool:
        if isinstance(error, errors.FencedInstance):
            self._lose(error)
            self.state, self._trouble = State.FENCED, error
            return True
        if isinstance(error, errors.UnknownMember | errors.IllegalGeneration):
            if isinstance(error, errors.IllegalGeneration) and not self._settings.instance_id:
                # The group may know this id still.
                self._take_back()
            self._lose(error)
            self._join_anew(now_ms)
            return True
        return False

    def _join_anew(self, now_ms: float) -> None:
        """Under a new id. A static member takes its own last place, and nobody else's: another
        process that has taken it meanwhile is not fenced by who comes back."""
        self._replaces = self.member_id if self._settings.instance_id else ""
        self.state = State.JOINING
        self.member_id = self._draw_id()
        self.generation = 0
        self._due_ms = now_ms

    def _leaving(self, member_id: str) -> offset_manager_pb2.HeartbeatRequest:
        member = self.wire()
        member.member_id = member_id
        return offset_manager_pb2.HeartbeatRequest(
            group=self._settings.group, member=member, leaving=True
        )

    def _take_back(self) -> None:
        """The id that it had: the group may know it still."""
        self._leaves, self._leaves_unheard, self._leave_due_ms = self.member_id, 0, 0.0

    def _leave_refused(
        self,
        request: offset_manager_pb2.HeartbeatRequest,
        error: errors.OncelogError,
        now_ms: float,
    ) -> None:
        """A new leader has heard nobody, and gives each member a whole session: it must be told."""
        if _is_silence(error) and self._leaves_unheard < LEAVES_MAX - 1:
            self._leaves_unheard += 1
            self._leave_due_ms = now_ms + AGAIN_MS
        else:
            self._has_left(request)

    def _has_left(self, request: offset_manager_pb2.HeartbeatRequest) -> None:
        if request.member.member_id == self._leaves:
            self._leaves, self._leaves_unheard, self._leave_due_ms = None, 0, 0.0

    def check(self) -> None:
        """Asserts the invariants; for tests."""
        assert self.state is State.MEMBER or not self._held
        assert set(self.may_read).isdisjoint(self.must_let_go)


def _is_silence(error: errors.OncelogError) -> bool:
    """The group has not refused: it did not answer, or nobody can say what it answered. Also where
    no process of the role was ever met: it may be on its way."""
    return isinstance(error, errors.TryAgain | errors.InDoubt | CannotConnect)
