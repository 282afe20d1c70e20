"""Bugs of replication: who is in sync, what is acknowledged, where two logs part. Most of them lose
an acknowledged record in one order of events among thousands; the explorer finds that order."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_IN_SYNC: Final = "oncelog_server.runtime.replica.in_sync:InSync"
_FOLLOWING: Final = "oncelog_server.runtime.replica.following:Following"
_LEADERSHIP: Final = "oncelog_server.runtime.replica.leading:Leadership"
_COUNTED: Final = "self.isr.union({self._own}, *(change.isr for change in self._in_flight))"


def _explored(scenario: str) -> str:
    return unit("replica/test_explorer", f"test_i5_no_acknowledged_record_is_lost[{scenario}]")


def _in_copies(test: str) -> str:
    return f"tests/simulation/test_replication.py::{test}"


def _in_days(test: str) -> str:
    return f"tests/simulation/test_copies.py::{test}"


BUGS: Final = (
    Bug(
        "acknowledged-before-it-is-synced",
        "I25: followers acknowledge what they have synced",
        (
            Edit(
                f"{_FOLLOWING}.acknowledge",
                "JournalOffset(log.synced_end)",
                "JournalOffset(log.log_end)",
            ),
        ),
        {
            _explored("failover"): "have synced",
            _in_days(
                "test_i5_nothing_is_lost_with_the_disks_of_a_day_one_after_the_other"
            ): "I25: ",
        },
    ),
    Bug(
        "acknowledgements-of-another-epoch-count",
        "I5: acknowledgements of another epoch count for nothing",
        (
            Edit(
                f"{_IN_SYNC}.acknowledged",
                "if epoch != self.epoch or node",
                "if node",
            ),
        ),
        {_explored("returns"): "is elected with"},
    ),
    Bug(
        "logs-are-compared-once",
        "I7: two logs agree where the answered epoch is the follower's last one (KIP-279)",
        (
            Edit(
                f"{_FOLLOWING}._go_on",
                "log.last_epoch and self._answered_epoch != log.last_epoch",
                "self._answered_epoch > log.last_epoch > self._answered_epoch",
            ),
        ),
        {_explored("parted logs"): "was shown"},
    ),
    Bug(
        "cut-to-the-leaders-end-of-an-epoch-alone",
        "I7: a log is cut to the smaller one of two ends of an epoch (KIP-101)",
        (
            Edit(
                f"{_FOLLOWING}._parted",
                "min(answer.answered_end, own_end)",
                "answer.answered_end",
            ),
        ),
        {_explored("parted logs"): "never agree where"},
    ),
    Bug(
        "cut-to-the-known-high-watermark",
        "I5: nothing is cut because of the high watermark: a follower knows a lower one than was "
        "shown",
        (
            Edit(
                f"{_FOLLOWING}._parted",
                "end = min(answer.answered_end, own_end)",
                "end = min(answer.answered_end, own_end, self.high_watermark)",
            ),
        ),
        {_explored("reappearing"): "is elected with"},
    ),
    Bug(
        "joiner-without-epoch-start",
        "I5: who joins has synced EPOCH_START: a new leader may know no high watermark",
        (
            Edit(
                f"{_IN_SYNC}._may_join",
                "progress.synced_end > self._epoch_start",
                "progress.synced_end >= 0",
            ),
        ),
        {_explored("empty joiner"): "is elected with"},
    ),
    Bug(
        "joiner-below-the-high-watermark",
        "I5: who joins has synced all below the leader's high watermark",
        (
            Edit(
                f"{_IN_SYNC}._may_join",
                "progress.synced_end >= self._hw.value",
                "progress.synced_end >= 0",
            ),
        ),
        {_explored("joins"): "is elected with"},
    ),
    Bug(
        "change-over-once-the-same-revision-is-read",
        "I5: a change of the ISR is in flight until a revision above the compared one is seen",
        (
            Edit(
                f"{_IN_SYNC}.state_seen",
                "if revision <= self.revision",
                "if revision < self.revision",
            ),
            Edit(
                f"{_IN_SYNC}.state_seen",
                "change.compared_revision >= revision",
                "change.compared_revision > revision",
            ),
        ),
        {_explored("joins"): "is elected with"},
    ),
    Bug(
        "only-the-latest-change-counts",
        "I5: several changes of the ISR may be in flight, and all count",
        (
            Edit(
                f"{_IN_SYNC}.change_sent",
                "self._in_flight += (",
                "self._in_flight = (",
            ),
        ),
        {_explored("joins"): "is elected with"},
    ),
    Bug(
        "joiner-counts-once-confirmed",
        "I5: a joiner counts from the moment its compare-and-set is sent",
        (Edit(f"{_IN_SYNC}.counted", _COUNTED, "self.isr"),),
        {_explored("joins"): "is elected with"},
    ),
    Bug(
        "leaver-counts-until-asked",
        "I5: who leaves the ISR counts until that is confirmed",
        (
            Edit(
                f"{_IN_SYNC}.counted",
                _COUNTED,
                "self.isr.intersection(*(change.isr for change in self._in_flight)).union("
                "*(change.isr - self.isr for change in self._in_flight))",
            ),
        ),
        {_explored("ISR changes"): "have synced"},
    ),
    Bug(
        "isr-of-one",
        "I25: the ISR never shrinks below min_insync_replicas, and nothing is shown below it",
        (
            Edit(
                f"{_IN_SYNC}.next_change",
                "self._nodes(rest) >= self.min_insync_replicas",
                "True",
            ),
            Edit(
                f"{_IN_SYNC}._count_anew",
                "self._nodes(self.isr) < self.min_insync_replicas",
                "self._nodes(self.isr) < 1",
            ),
        ),
        {_explored("ISR changes"): "have synced"},
    ),
    Bug(
        "shown-by-a-lone-first-leader",
        "I25: the high watermark does not move while the ISR has too few nodes",
        (
            Edit(
                f"{_IN_SYNC}._count_anew",
                "self._nodes(self.isr) < self.min_insync_replicas",
                "self._nodes(self.isr) < 1",
            ),
        ),
        {_explored("first"): "have synced"},
    ),
    Bug(
        "inherited-frames-shown-before-epoch-start",
        "I5: the high watermark does not move in an epoch before it can pass EPOCH_START",
        (
            Edit(
                "oncelog_server.runtime.replica.high_watermark:HighWatermark._move",
                "covered <= self._epoch_start or covered <= self.value",
                "covered <= self.value",
            ),
        ),
        {_explored("recovery"): "is elected with"},
    ),
    Bug(
        "an-unfit-replica-wins",
        "I5: only members of the ISR win, by incarnation",
        (
            Edit(
                "oncelog_server.runtime.leadership.rules:fitness",
                "return Fitness.FIT if candidate.incarnation.hex() in state.isr else Fitness.UNFIT",
                "return Fitness.FIT",
            ),
        ),
        {_explored("rot"): "is elected with"},
    ),
    Bug(
        "an-earlier-epoch-is-followed",
        "I18: who has a frame of a later epoch does not follow an earlier one",
        (Edit(f"{_FOLLOWING}.__init__", "> epoch:", "< 0:"),),
        {
            unit(
                "replica/test_following",
                "test_i18_who_has_a_later_epoch_does_not_follow_an_earlier_one",
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "high-watermark-beyond-the-own-log",
        "I27: a follower knows of the high watermark what it has",
        (Edit(f"{_FOLLOWING}._advance", "min(self._heard, self._log.log_end)", "self._heard"),),
        {
            unit(
                "replica/test_following",
                "test_i27_a_follower_knows_of_the_high_watermark_what_it_has",
            ): "assert 9 == 2"
        },
    ),
    Bug(
        "lost-change-never-settled",
        "I29: a change of the ISR whose answer was lost does not hold up the partition",
        (
            Edit(
                f"{_IN_SYNC}.next_change",
                "if self._in_flight:",
                "if False and self._in_flight:",
            ),
        ),
        {
            unit(
                "replica/test_in_sync", "test_a_change_whose_answer_was_lost_is_settled"
            ): "assert None == IsrChange"
        },
    ),
    Bug(
        "written-where-nobody-keeps-up",
        "I25: with too few replicas that keep up, writes are refused before any append",
        (
            Edit(
                f"{_IN_SYNC}.has_enough",
                "if not self._lags(member, now_ms)",
                "if member in self.isr",
            ),
        ),
        {
            unit(
                "replica/test_in_sync",
                "test_the_isr_never_shrinks_below_the_least_and_writes_are_refused_there",
            ): "refused before any append"
        },
    ),
    Bug(
        "all-catch-up-at-once",
        "I29: replicas that are far behind share what they have on their way",
        (
            Edit(
                "oncelog_server.runtime.replica.follower:Follower.next_step",
                "(self._stream, self._catch_up) if position < tail_start else (self._stream,)",
                "(self._stream,)",
            ),
        ),
        {
            unit(
                "replica/test_following", "test_who_is_far_behind_waits_and_who_keeps_up_does_not"
            ): "is None"
        },
    ),
    Bug(
        "copied-wherever-it-belongs",
        "I7: a follower appends what comes next, and nothing else",
        (
            Edit(
                "oncelog_server.runtime.storage.copying:copied_frames",
                "why = misplaced(stored, place)",
                "why = None",
            ),
        ),
        {unit("storage/test_copying", "test_i7_only_what_comes_next_is_taken"): "DID NOT RAISE"},
    ),
    Bug(
        "copied-in-part",
        "I26: of frames that were damaged on the way nothing is appended",
        (
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.append_copied",
                "copied = list(copied_frames(frames, place, epoch=epoch))",
                "copied = copied_frames(frames, place, epoch=epoch)",
            ),
        ),
        {
            unit(
                "storage/test_copying",
                "test_i26_a_bit_that_flipped_on_the_way_is_seen_and_nothing_is_appended",
            ): "101 == 1"
        },
    ),
    Bug(
        "log-given-up-under-the-old-name",
        "I25: who gives up its log for a snapshot takes a new incarnation first",
        (
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.begin_at",
                "if self.log_end > 0:",
                "if self.log_end < 0:",
            ),
        ),
        {
            unit(
                "storage/test_beginning",
                "test_i25_who_gives_up_its_log_has_another_name_whenever_it_dies",
            ): "incarnation"
        },
    ),
    Bug(
        "log-begins-before-its-snapshot-stands",
        "I25: a log begins in the middle once the state of all before it is durable",
        (
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.begin_at",
                "self._snapshots.save(offset, snapshot, epoch=epochs[-1].epoch)",
                "pass",
            ),
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.begin_at",
                "self._synced_end_file.note_in_both(Bounds(offset, offset, self.allowed))",
                "self._synced_end_file.note_in_both(Bounds(offset, offset, self.allowed))\n"
                "        self._snapshots.save(offset, snapshot)",
            ),
        ),
        {
            unit(
                "storage/test_beginning",
                "test_i25_who_gives_up_its_log_has_another_name_whenever_it_dies",
            ): "it begins where nothing stands before it"
        },
    ),
    Bug(
        "written-with-too-few-in-sync",
        "I5: with fewer than min_insync_replicas in sync nothing is appended",
        (
            Edit(
                f"{_LEADERSHIP}.submit",
                "self.followers.require_enough()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_replicas_in_sync",
                "test_i5_with_too_few_in_sync_nothing_is_appended",
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "own-synced-end-is-shown",
        "I4: a leader that needs others inherits the HW, not what it has synced itself",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership._inherited",
                "if not needs_others and set(granted.isr.members) <= {journal.incarnation}:",
                "if granted is not None:",
            ),
        ),
        {
            unit(
                "runtime/test_replicas_in_sync",
                "test_i4_what_only_this_replica_has_synced_is_not_shown_by_its_next_epoch",
            ): "another log may win"
        },
    ),
    Bug(
        "dead-members-hold-the-epoch-up",
        "the ISR is looked at while the epoch loads, too",
        (
            Edit(
                "oncelog_server.runtime.replica.driver:Driver.tick",
                "led.followers.review()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_replicas_in_sync",
                "test_i5_a_change_whose_answer_was_lost_counts_until_a_later_revision_is_seen",
            ): "it asks again"
        },
    ),
    Bug(
        "isr-changed-whoever-changed-it-meanwhile",
        "I5: revisions are compared",
        (
            Edit(
                "oncelog_server.runtime.leadership.isr:change_isr",
                "if found.mod_revision != compared_revision:",
                "compared_revision = found.mod_revision\n        if not members:",
            ),
        ),
        {
            unit(
                "leadership/test_isr",
                "test_i5_revisions_are_compared_and_what_was_changed_meanwhile_is_told",
            ): "there and back"
        },
    ),
    Bug(
        "a-cut-is-not-told-to-the-leader",
        "I7: after a cut the follower goes on in its dialog",
        (
            Edit(
                "oncelog_server.runtime.replica.followership:Followership._cut",
                "self._say(said)",
                "pass",
            ),
        ),
        {
            "tests/simulation/directed/test_epochs.py::"
            "test_i7_logs_are_compared_until_their_epochs_agree": "all are in sync"
        },
    ),
    Bug(
        "followers-listen-on",
        "I18: who is told otherwise hears its leader no more",
        (
            Edit(
                "oncelog_server.runtime.replica.epochs:Epochs.end",
                "self.followership.end()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_followers",
                "test_i18_who_is_told_otherwise_hears_its_leader_no_more",
            ): "assert"
        },
    ),
    Bug(
        "silent-members-hold-up-writes",
        "I25: who has no dialog with the leader is given up soon",
        (Edit(f"{_IN_SYNC}._lags", "if incarnation not in self._speaking:", "if False:"),),
        {
            unit(
                "replica/test_in_sync",
                "test_who_has_no_dialog_is_given_up_sooner_than_who_lags",
            ): "assert None == IsrChange"
        },
    ),
    Bug(
        "the-dead-are-waited-for",
        "I5: who has no dialog and no process is given up at once",
        (
            Edit(
                f"{_IN_SYNC}._departures",
                "if are_silent_gone and incarnation not in self._speaking:",
                "if False:",
            ),
        ),
        {
            unit(
                "replica/test_in_sync", "test_who_has_no_process_is_given_up_at_once"
            ): "assert None == IsrChange",
            _in_copies(
                "test_i5_a_leader_that_died_holds_up_nothing_once_another_one_is_elected"
            ): "it was waited for",
        },
    ),
    Bug(
        "who-may-live-is-given-up-at-once",
        "I5: a member that has not said where it is may be on any node without a dialog",
        (
            Edit(
                f"{_IN_SYNC}._are_silent_gone",
                "silent.isdisjoint(living)",
                "not silent.issubset(living)",
            ),
        ),
        {
            unit(
                "replica/test_in_sync", "test_who_has_no_process_is_given_up_at_once"
            ): "b or c may be the one that lives"
        },
    ),
    Bug(
        "nobody-says-who-lives",
        "I5: a leader asks etcd's view which nodes have a process",
        (
            Edit(
                "oncelog_server.runtime.node:Node._assemble",
                "living=lambda: view.living,",
                "",
            ),
        ),
        {
            _in_copies(
                "test_i5_a_leader_that_died_holds_up_nothing_once_another_one_is_elected"
            ): "it was waited for"
        },
    ),
    Bug(
        "silent-streams-stand",
        "I25: a stream on which nothing comes is over",
        (
            Edit(
                "oncelog_server.runtime.replication.serving:_spoken",
                "asyncio.timeout(STREAM_SILENT_MS / 1000)",
                "asyncio.timeout(60)",
            ),
        ),
        {
            unit(
                "runtime/test_silent_streams",
                "test_a_follower_that_says_nothing_is_dropped_by_its_leader",
            ): "assert"
        },
    ),
    Bug(
        "followers-without-signs-of-life",
        "I25: a follower with nothing to say is not taken for dead",
        (
            Edit(
                "oncelog_server.runtime.replication.links:_Outgoing.next",
                "asyncio.timeout(SIGN_OF_LIFE_MS / 1000)",
                "asyncio.timeout(60)",
            ),
        ),
        {
            unit(
                "runtime/test_silent_streams",
                "test_a_follower_with_nothing_to_say_gives_signs_of_life",
            ): "assert"
        },
    ),
)
