"""Bugs against the directed cases in which something is lost: disks, or what etcd had, for good,
or the way to etcd (docs/testing.md)."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit

_IDENTITY: Final = "oncelog_server.runtime.etcd.identity:ClusterIdentity"
_IN_SYNC: Final = "oncelog_server.runtime.replica.in_sync:InSync"
_RULES: Final = "oncelog_server.runtime.leadership.rules"
_CHOOSING: Final = "oncelog_server.runtime.cluster_recovery.choosing"


def _directed(room: str, test: str) -> str:
    return f"tests/simulation/directed/{room}.py::{test}"


BUGS: Final = (
    # ----------------------------------------------------------------------------- disks are lost
    Bug(
        "emptied-replica-wins-and-joins",
        "I5: whoever lost its disk is elected by its node, and names itself in sync",
        (
            Edit(
                f"{_RULES}:fitness",
                "return Fitness.FIT if candidate.incarnation.hex() in state.isr else Fitness.UNFIT",
                "return Fitness.FIT",
            ),
            Edit(
                f"{_RULES}:make_bid",
                "isr = state.isr or (incarnation.hex(),)",
                "isr = tuple({*state.isr, incarnation.hex()})",
            ),
        ),
        {
            _directed(
                "test_lost_disks",
                "test_i5_i25_while_a_member_has_its_disk_nothing_acknowledged_is_lost",
            ): "lack what was acknowledged"
        },
    ),
    Bug(
        "own-older-incarnation-holds-its-leader",
        "I29: whoever is in sync and says nothing leaves, what the leader itself was before, too",
        (
            Edit(
                f"{_IN_SYNC}._departures",
                "others = sorted(self.isr - {self._own})",
                "others = sorted(self.isr.intersection(self._progress))",
            ),
        ),
        {
            _directed(
                "test_returning", "test_i29_a_leader_gives_up_its_own_older_incarnation"
            ): "never came: "
        },
    ),
    Bug(
        "a-log-of-the-last-epoch-wins",
        "I5: who was in sync once, in this epoch, and is no more, is not elected, though nobody "
        "else can be",
        (
            Edit(
                f"{_RULES}:fitness",
                "return Fitness.FIT if candidate.incarnation.hex() in state.isr else Fitness.UNFIT",
                "return (Fitness.FIT if candidate.incarnation.hex() in state.isr\n"
                "            or candidate.last_epoch == state.epoch else Fitness.UNFIT)",
            ),
        ),
        {
            _directed(
                "test_lost_disks",
                "test_i5_where_every_member_lost_its_disk_nobody_leads_and_it_is_said[(0, 1)]",
            ): "nobody has what was acknowledged"
        },
    ),
    Bug(
        "offline-without-a-word",
        "I5: a partition that nobody may lead says so, and what to do",
        (
            Edit(
                "oncelog_server.runtime.leadership.standing:Standing._may_win",
                "elif history.reported_revision != entry.mod_revision:",
                "elif history.reported_revision > entry.mod_revision:",
            ),
        ),
        {
            _directed(
                "test_lost_disks",
                "test_i5_where_every_member_lost_its_disk_nobody_leads_and_it_is_said[(0, 1, 2)]",
            ): "says nothing"
        },
    ),
    # --------------------------------------------------------------------------- etcd is lost
    Bug(
        "wiped-etcd-taken-for-a-new-one",
        "I18: an etcd without the cluster's record, and without what was seen, is refused",
        (
            Edit(f"{_IDENTITY}._judge", "if revision < at_least:", "if False:"),
            Edit(
                f"{_IDENTITY}._judge", "if record is None:", "if record is None and not at_least:"
            ),
            Edit(
                f"{_IDENTITY}._judge",
                "value = cluster_value(record.value)",
                "if record is None:\n"
                "            return\n"
                "        value = cluster_value(record.value)",
            ),
            # What was seen written is not there any more, either.
            Edit(
                f"{_IDENTITY}.recheck",
                "if not await has_history_of(self._etcd, self._remembered):",
                "if False:",
            ),
        ),
        {
            _directed(
                "test_etcd_lost", "test_i18_an_etcd_that_went_back_is_obeyed_by_nobody[wiped]"
            ): "obeys"
        },
    ),
    Bug(
        "another-history-taken-for-the-same",
        "I18: what was seen of etcd is confirmed before more is remembered",
        (
            Edit(
                "oncelog_server.runtime.etcd.identity:ClusterIdentity.recheck",
                "if not await has_history_of(self._etcd, self._remembered):",
                "if False:",
            ),
        ),
        {
            _directed(
                "test_etcd_lost", "test_i18_an_etcd_that_went_back_is_obeyed_by_nobody[restored]"
            ): "obeys"
        },
    ),
    # ------------------------------------------------------------------- and rebuilt from the logs
    Bug(
        "inherited-frame-shown-before-its-leaders-epoch",
        "I5: the high watermark does not move in an epoch before it can pass EPOCH_START (Raft's "
        "figure 8, through a recovery)",
        (
            Edit(
                "oncelog_server.runtime.replica.high_watermark:HighWatermark._move",
                "covered <= self._epoch_start or covered <= self.value",
                "covered <= self.value",
            ),
        ),
        {
            _directed(
                "test_recovering",
                "test_i5_what_was_shown_of_an_older_epoch_outlives_a_recovery[epoch not covered]",
            ): "x is shown, and may be lost"
        },
    ),
    Bug(
        "longer-log-of-an-older-epoch-leads",
        "I5: after a recovery the largest (last epoch, synced end) leads, not the longest log",
        (
            Edit(
                "oncelog_server.runtime.leadership.last_resort:rank",
                "(log.last_epoch, log.synced_end, log.node_id)",
                "(log.synced_end, log.node_id)",
            ),
        ),
        {
            _directed(
                "test_recovering",
                "test_i5_what_was_shown_of_an_older_epoch_outlives_a_recovery[epoch covered]",
            ): "the log of the latest epoch leads"
        },
    ),
    Bug(
        "whoever-lives-leads-after-a-recovery",
        "I5: a recovery names one log in sync, the one that has all, whoever was in sync before",
        (
            Edit(
                f"{_CHOOSING}:choose",
                "isr=(best.incarnation,)",
                "isr=tuple(one.incarnation for one in sound)",
            ),
        ),
        {
            _directed(
                "test_recovering",
                "test_i5_i18_after_an_etcd_of_the_past_a_recovery_finds_the_log_that_has_all",
            ): "the dropped one lacks what was acknowledged"
        },
    ),
    # ---------------------------------------------------------------------- the way to etcd is lost
    Bug(
        "who-waits-hears-of-no-lapse",
        "a reader that waits is woken when the lease of its leader has run out, also at rest",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership.lease_lapsed",
                "self._notify_advanced()",
                "pass",
            ),
        ),
        {
            _directed(
                "test_leases", "test_a_reader_that_waits_at_a_deposed_leader_is_sent_on"
            ): "it waits where nothing comes any more"
        },
    ),
)
