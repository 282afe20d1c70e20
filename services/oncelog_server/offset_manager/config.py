"""Settings of the offset manager."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Partitions that one call may name. A lone member names all of its group in a heartbeat.
OFFSETS_PER_CALL_MAX: Final = 10_000
DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class OffsetManagerConfig:
    """Each field: meaning, unit, danger."""

    # Committed offsets of a group that committed nothing for so long are forgotten, milliseconds,
    # by the age of its partition's journal, which may lag by half a day and never jumps. A commit
    # in place (from = to) is a sign of life. Danger: a consumer that comes back later, or gives no
    # such sign on a quiet topic, starts as if it were new.
    group_retention_ms: int = 7 * DAY_MS
    # A producer without transactions for so long is forgotten, milliseconds. Danger: below the time
    # that a lost batch of offsets can be on its way, the batch is asked about instead of refused.
    producer_retention_ms: int = 7 * DAY_MS
    # Transactions with pending offsets per partition of __consumer_offsets.
    open_transactions_max: int = 100_000
    # Groups per partition of __consumer_offsets.
    groups_max: int = 1_000_000
    # Partitions that one group has committed or pending offsets of. Danger: all of them are one
    # reply where a client asks for all.
    offsets_per_group_max: int = 100_000
    # Members of one group. Danger: each of them is heard of every few seconds, and each that comes
    # or goes has the assignor look at all of them.
    members_per_group_max: int = 2_000
    # Partitions of the topics that one group's members subscribe to. One member may have to name
    # all of them in one heartbeat.
    partitions_per_group_max: int = 10_000
    # Different subscriptions (sets of topics) that one group's members have. Danger: an assignment
    # costs by their number, in the loop that renews leases.
    subscriptions_per_group_max: int = 250
    # Claims of one group: who is no member and commits for it alone, a Spark query, has one.
    claims_per_group_max: int = 16
    # Sessions that members may ask for, milliseconds. Danger: with a short one, members that stand
    # still for a moment lose what they own; with a long one, what a dead member owns waits as long.
    member_session_ms_min: int = 1_000
    member_session_ms_max: int = 30 * 60 * 1000
    # Producers of transactions that a partition of __consumer_offsets remembers.
    producers_max: int = 1_000_000
    # How long a transaction may be open here before its coordinator is asked, milliseconds.
    question_after_ms: int = 1_000
    # And how often again, until it has ended here, milliseconds.
    question_again_ms: int = 2_000
    # How often the records that wait for each group are counted, for metrics, milliseconds; 0:
    # never.
    lag_every_ms: int = 15_000
    # Series of group_lag per partition of __consumer_offsets: of the groups that committed last.
    # Danger: each is a line of every scrape.
    lag_series_max: int = 1_000

    def validate(self) -> None:
        """Raises ValueError naming the field."""
        if self.lag_every_ms < 0:
            raise ValueError(
                f"offset_manager.lag_every_ms must be 0 or more, not {self.lag_every_ms}"
            )
        for name in self.__dataclass_fields__:
            if name != "lag_every_ms" and getattr(self, name) <= 0:
                raise ValueError(
                    f"offset_manager.{name} must be above 0, not {getattr(self, name)}"
                )
        if self.partitions_per_group_max > OFFSETS_PER_CALL_MAX:
            raise ValueError(
                f"offset_manager.partitions_per_group_max must be at most {OFFSETS_PER_CALL_MAX}, "
                f"as many as one heartbeat can name, not {self.partitions_per_group_max}"
            )
