"""Bugs of the offset manager: locks, stable reads, markers, questions."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

_BESIDE: Final = "offset_manager/i21_what_stands_beside_an_offset_is_checked"

BUGS: Final = (
    Bug(
        "what-stands-beside-is-not-checked",
        "I21: who starts from other metadata than stand beside the group's offset is refused",
        (
            Edit(
                "oncelog_server.offset_manager.group:Group._require_from",
                '        self._require_beside(step, "" if committed is None else '
                "committed.step.metadata, beside)",
                "        pass",
            ),
        ),
        {
            story(_BESIDE): "-commit g orders/0:10>10 metadata=given:2 beside= -> STALE_POSITION",
        },
    ),
    Bug(
        "chained-whatever-stands-beside",
        "I21: who chains starts from the metadata of what it chains on",
        (
            Edit(
                "oncelog_server.offset_manager.group:Group.needs_pending",
                "        self._require_beside(step, last.step.metadata, beside)\n",
                "",
            ),
        ),
        {
            story(
                _BESIDE
            ): "-pend 4.6 300 1 h orders/0:10>10 metadata=given:3 beside= after=4.5 -> STALE",
        },
    ),
    Bug(
        "own-step-back-whatever-stands-beside",
        "I21: a late copy of a transaction's earlier step does not take back what lies beyond",
        (
            Edit(
                "oncelog_server.offset_manager.group:Group._extends_own",
                "        self._require_beside(step, own.step.metadata, beside)\n",
                "",
            ),
        ),
        {
            story(
                _BESIDE
            ): "-pend 4.6 300 1 h orders/0:10>10 metadata=given:3 beside=given:1 -> STALE",
        },
    ),
    Bug(
        "repeated-change-refused",
        "I21: a repeat of what was taken is told so, also where the offset stayed the same",
        (
            Edit(
                "oncelog_server.offset_manager.group:_is_over_with",
                " or beside not in (None, step.metadata)",
                "",
            ),
        ),
        {story(_BESIDE): "-commit g orders/1:10>10 metadata=given:1 beside= -> OK"},
    ),
    Bug(
        "decide-watches-the-age",
        "decide changes nothing at all, time that passed is a signal",
        (
            Edit(
                "oncelog_server.offset_manager.decide_time:_due",
                "aged_ms = state.age.at(now.wall_ms)",
                "aged_ms = state.age.at(now.wall_ms)\n    watch.look(state.age, now)",
            ),
        ),
        {story("offset_manager/idle_group_expires"): "decide of Tick changes nothing"},
    ),
    Bug(
        "committed-offsets-not-in-the-snapshot",
        "I24: committed offsets survive every failover",
        (
            Edit(
                "oncelog_server.offset_manager.machine:OffsetManagerMachine.restore",
                "self._state = _DECODER.decode(state)",
                "self._state = _DECODER.decode(state)\n"
                "        for group in self._state.groups.values():\n"
                "            group.committed.clear()",
            ),
        ),
        {
            story(
                "offset_manager/i24_committed_offsets_survive_failover"
            ): "-stable g -> orders/0=20",
        },
    ),
    Bug(
        "pending-ignored",
        "I22: a stable fetch is PENDING while anything is pending, else one item is "
        "processed twice",
        (
            Edit(
                "oncelog_server.offset_manager.reading:_fetched",
                "if holder and command.read is Read.STABLE:",
                "if False:",
            ),
        ),
        {
            story(
                "offset_manager/stable_fetch_waits_only_for_what_it_asks"
            ): "-stable g orders/0 -> PENDING_TRANSACTION partition=0 tx_id=3.5",
        },
    ),
    Bug(
        "pending-offset-fetched",
        "I22: a fetch never returns an offset of an open or aborted transaction",
        (
            Edit(
                "oncelog_server.offset_manager.reading:_fetched",
                "committed = group.committed.get(partition)",
                "line = group.pending.get(partition)\n"
                "    committed = line[-1] if line else group.committed.get(partition)",
            ),
            Edit(
                "oncelog_server.offset_manager.reading:_fetched",
                "committed.time_ms,\n        holder,\n        committed.mover,",
                "0,\n        holder,\n        0,",
            ),
        ),
        {
            story(
                "offset_manager/committed_transaction_moves_the_offset"
            ): "-fetch g -> orders/0=none(pending 3.5) orders/1=none(pending 3.5)",
        },
    ),
    Bug(
        "from-not-checked-when-pending",
        "two jobs read from 0; both prepare and expose: item 0 twice",
        (
            Edit(
                "oncelog_server.offset_manager.group:Group._require_from",
                "if step.from_ != position:",
                "if False:",
            ),
        ),
        {
            story(
                "offset_manager/two_jobs_from_one_position"
            ): "-pend 4.5 200 1 g orders/0:none>10 -> STALE_POSITION committed=10",
            story(
                "offset_manager/stale_position_names_the_committed_one"
            ): "-commit g orders/0:0>12 -> STALE_POSITION committed=10 partition=0",
        },
    ),
    Bug(
        "pending-offset-locks-nothing",
        "PENDING_TRANSACTION while another holds it",
        (
            Edit(
                "oncelog_server.offset_manager.group:Group.needs_pending",
                "self._require_chain(step, last, tx_id=tx_id, producer_id=producer_id)",
                "",
            ),
            Edit(
                "oncelog_server.offset_manager.group:Group.check",
                "assert len(producers) == 1,",
                "assert producers,",
            ),
        ),
        {
            story(
                "offset_manager/two_jobs_from_one_position"
            ): "-pend 4.5 200 1 g orders/0:none>10 -> PENDING_TRANSACTION partitio",
        },
    ),
    Bug(
        "plain-commit-passes-the-lock",
        "PENDING_TRANSACTION while a transaction holds it, plain commits too",
        (
            Edit(
                "oncelog_server.offset_manager.group:Group.require_plain",
                "if line:",
                "if False:",
            ),
        ),
        {
            story(
                "offset_manager/plain_commit_waits_for_a_pending_one"
            ): "-commit g orders/0:none>4 -> PENDING_TRANSACTION partition=0 tx_id",
        },
    ),
    Bug(
        "chained-on-another-producer",
        "`from` may chain only on a transaction known to be at PREPARE_COMMIT, one's own",
        (
            Edit(
                "oncelog_server.offset_manager.group:Group._require_chain",
                "if last.producer_id != producer_id:",
                "if False:",
            ),
        ),
        {
            story("offset_manager/chain_on_somebody_else_is_refused"): "two producers in line",
        },
    ),
    Bug(
        "chained-on-whatever-is-pending",
        "the committed offset jumps over the input of an aborted one",
        (
            Edit(
                "oncelog_server.offset_manager.group:Group._require_chain",
                "if step.after != last.tx_id:",
                "if False:",
            ),
        ),
        {
            story(
                "offset_manager/chain_of_the_last_in_line"
            ): "-pend 3.11 100 1 g orders/0:10>30 after=3.5 -> PENDING_TRANSACTION",
        },
    ),
    Bug(
        "same-step-of-another-is-a-repeat",
        "I21: two consumers processed the same input, and the second one is told",
        (
            Edit(
                "oncelog_server.offset_manager.group:Group.has_taken",
                "            and not committed.tx_id\n",
                "",
            ),
        ),
        {
            story(
                "offset_manager/the_same_step_by_another_is_no_repeat"
            ): "-commit g orders/0:none>10 -> STALE_POSITION committed=10 partitio",
        },
    ),
    Bug(
        "aborted-offset-committed",
        "I22: ABORTED gives the position back",
        (
            Edit(
                "oncelog_server.offset_manager.state:State._end",
                "                if outcome is Outcome.COMMITTED:\n"
                "                    group.commit(",
                "                if True:\n                    group.commit(",
            ),
        ),
        {
            story("offset_manager/aborted_transaction_leaves_no_trace"): "-stable g -> orders/0=10",
        },
    ),
    Bug(
        "offset-marker-applied-twice",
        "a marker at or below the last PREPARE offset is a repeat",
        (
            Edit(
                "oncelog_server.participant.marker_walk:walk",
                "is_new = marker.prepare_offset > last_committed",
                "is_new = True",
            ),
        ),
        {
            story("offset_manager/repeated_marker_is_ok"): "decide lets no repeat through",
        },
    ),
    Bug(
        "aborted-marker-moves-the-order-of-offsets",
        "only COMMITTED markers move and obey the last PREPARE offset",
        (
            Edit(
                "oncelog_server.offset_manager.state:State.mark",
                "self.order.saw(journal, epoch)",
                "self.order.saw(journal, epoch).prepare_offset = record.prepare_offset",
            ),
        ),
        {
            story(
                "offset_manager/aborted_marker_does_not_move_the_order"
            ): "-@4 MARKER 3.5 committed prepare=12 epoch=1",
        },
    ),
    Bug(
        "refused-offset-marker-swallowed",
        "a batch of markers stops at its first refusal",
        (
            Edit(
                "oncelog_server.participant.marker_walk:walk",
                "        if refusal is not None:\n            break",
                "        if refusal is not None:\n            refusal = None\n            continue",
            ),
        ),
        {
            story(
                "offset_manager/markers_stop_at_the_first_refusal"
            ): "-markers 3 1 3.5:7:c:100:1 4.9:8:c:100:1 3.8:10:c:100:1 -> applied",
        },
    ),
    Bug(
        "pending-offset-expires",
        "offsets of an empty group expire after 7 days, never a pending one",
        (
            Edit(
                "oncelog_server.offset_manager.decide_time:_idle_groups",
                "not state.groups[name].pending and ",
                "",
            ),
        ),
        {
            story(
                "offset_manager/pending_offset_never_expires"
            ): "held by transactions or in line, not both",
        },
    ),
    Bug(
        "last-commit-not-recorded",
        "a commit marker records, per group and producer, the last committed TxId "
        '("G-LAST-COMMIT")',
        (
            Edit(
                "oncelog_server.offset_manager.state:State._end",
                "group.last_commits[opened.producer_id] = tx_id",
                "pass",
            ),
        ),
        {
            story(
                "offset_manager/last_commit_per_group_and_producer"
            ): "-fetch g -> orders/0=10 orders/1=10 last(100)=3.5 last(200)=4.5",
        },
    ),
    Bug(
        "marker-is-no-sign-of-life",
        "I24: a group is as young as the marker that moved its offsets",
        (
            Edit(
                "oncelog_server.offset_manager.state:State._end",
                "group = self._touch(name)",
                "group = self.groups[name]",
            ),
        ),
        {story("offset_manager/a_commit_marker_is_a_sign_of_life"): "FORGOTTEN g other (expired)"},
    ),
    Bug(
        "last-commits-of-the-forgotten-kept",
        "what a producer last committed goes with it",
        (
            Edit(
                "oncelog_server.offset_manager.state:State.forget_producers",
                "group.last_commits.pop(producer_id, None)",
                "pass",
            ),
        ),
        {
            story(
                "offset_manager/last_commits_go_with_their_producer"
            ): "+fetch g -> orders/0=30 last(100)=3.5"
        },
    ),
    Bug(
        "first-in-line-released",
        "I22: of a chain each transaction ends for itself",
        (
            Edit(
                "oncelog_server.offset_manager.group:Group.release",
                "pending = line.pop(index)",
                "pending = line.pop(0)",
            ),
        ),
        {
            story(
                "offset_manager/the_later_in_line_is_dropped_alone"
            ): "held by transactions or in line, not both"
        },
    ),
    Bug(
        "one-partition-too-many",
        "offsets_per_group_max is the most that a group holds",
        (
            Edit(
                "oncelog_server.offset_manager.decide_commit:require_room",
                "+ len(new) > limit:",
                "+ len(new) > limit + 1:",
            ),
        ),
        {
            story(
                "offset_manager/a_full_group_takes_steps_of_what_it_has"
            ): "-commit g orders/6:none>1 -> LIMIT_EXCEEDED"
        },
    ),
    Bug(
        "transaction-offsets-on-a-full-disk",
        "I28: a full disk refuses data",
        (
            Edit(
                "oncelog_server.offset_manager.service:OffsetManagerService.commit_transaction_offsets",
                "replace(command, unfit=_no_room(replica))",
                "command",
            ),
        ),
        {
            unit(
                "offset_manager/test_service",
                "test_i28_a_full_disk_refuses_commits_and_answers_reads",
            ): "DID NOT RAISE DiskFull"
        },
    ),
    Bug(
        "a-clock-that-jumps-is-believed",
        "I21: a wall clock that jumps ahead makes every group look idle for as long, at one tick",
        (
            Edit(
                "oncelog_server.core.age:JournalAge.at",
                "min(max(wall_ms - self.last_ms, 0), STEP_MS)",
                "max(wall_ms - self.last_ms, 0)",
            ),
        ),
        {
            story("offset_manager/i21_a_clock_that_jumps_expires_nobody"): "FORGOTTEN idle",
        },
    ),
    Bug(
        "nobody-is-listened-for",
        "I21: a new leader forgets groups of whom nobody could hear while nobody led",
        (
            Edit(
                "oncelog_server.offset_manager.decide_time:_idle_groups",
                "min(config.group_retention_ms // 2, LISTENS_MS_MAX)",
                "0",
            ),
        ),
        {
            "tests/unit/offset_manager/test_expiry.py::"
            "test_i21_a_new_leader_hears_the_living_before_it_forgets_anybody": "AssertionError",
        },
    ),
    Bug(
        "a-frame-of-a-clock-that-jumped-is-believed",
        "I21: the first frame after the jump makes every group look idle, and every producer",
        (
            Edit(
                "oncelog_server.core.age:JournalAge.saw",
                "min(max(time_ms - self.last_ms, 0), step_ms)",
                "max(time_ms - self.last_ms, 0)",
            ),
        ),
        {
            story("offset_manager/i21_a_clock_that_jumps_expires_nobody"): "FORGOTTEN",
            story("partition_leader/a_clock_that_jumps_makes_nobody_silent"): "UNKNOWN_PRODUCER",
        },
    ),
    Bug(
        "an-idle-journal-never-ages",
        "nothing that is dead is forgotten where nobody writes",
        (
            Edit(
                "oncelog_server.offset_manager.decide_time:_due",
                "        yield TimePassed()\n",
                "        pass\n",
            ),
        ),
        {story("offset_manager/idle_group_expires"): "FORGOTTEN"},
    ),
)
