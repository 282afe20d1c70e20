"""Bugs of a member of a group: what it holds, when it is lost, and what it commits after that."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

CORE: Final = "client/test_membership_core"
MEMBER: Final = "client/test_membership"
FEEDING: Final = "client/test_member_transactions"
COMMITS: Final = "client/test_member_commits"

BUGS: Final = (
    Bug(
        "member-outlives-its-session",
        "I23: who hears nothing for a session has lost all that it held",
        (
            Edit(
                "oncelog._core.membership:Membership.heard",
                "self._over_ms = sent_ms + self._session_ms * SESSION_SHARE",
                "self._over_ms = sent_ms + self._session_ms * 2",
            ),
        ),
        {
            unit(
                CORE, "test_i23_all_is_lost_once_nothing_was_heard_for_a_session_since_it_was_sent"
            ): "AssertionError: assert ([PartitionKe",
            unit(
                MEMBER,
                "test_i23_who_hears_nothing_for_a_session_stops_before_another_one_begins",
            ): "assert",
        },
    ),
    Bug(
        "partition-let-go-by-hearsay",
        "I23: a heartbeat names all that is held, also what must go: not naming it gives it away",
        (
            Edit(
                "oncelog._core.membership:Membership.request",
                "for partition in self._held]",
                "for partition in self.may_read]",
            ),
        ),
        {
            unit(
                CORE, "test_i23_what_another_one_shall_have_is_named_until_it_let_go"
            ): "it is not done with it",
            unit(CORE, "test_i23_no_two_members_hold_one_partition"): "two members hold",
        },
    ),
    Bug(
        "answer-of-an-earlier-life-believed",
        "I23: an answer to what was asked under another id changes nothing",
        (
            Edit(
                "oncelog._core.membership:Membership._is_about",
                "is_mine = request.member.member_id == self.member_id",
                "is_mine = True",
            ),
        ),
        {
            unit(CORE, "test_i23_an_answer_of_an_earlier_life_changes_nothing"): "assert",
        },
    ),
    Bug(
        "commit-in-the-name-of-before",
        "I23: after a loss nothing that was held before is committed",
        (
            Edit(
                "oncelog._core.membership:Membership.require",
                "if self._loss is not None:",
                "if False:",
            ),
        ),
        {
            unit(
                MEMBER, "test_i23_a_commit_after_a_loss_is_refused_here_and_a_poll_goes_on"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "output-of-lost-input-committed",
        "I21: a transaction whose input went to another member never commits",
        (
            Edit(
                "oncelog.aio.member:Member._lose",
                "            self._open.lose(loss)",
                "            pass",
            ),
        ),
        {
            unit(
                FEEDING, "test_i21_a_transaction_whose_input_is_lost_never_commits"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "made-before-a-loss-committed-after-it",
        "I21: of what was made before its input was lost, nothing commits with offsets sent later",
        (
            Edit(
                "oncelog._core.open_transactions:OpenTransactions.begin",
                "loss is not None and loss[0] > began",
                "False",
            ),
        ),
        {
            unit(
                FEEDING,
                "test_i21_offsets_sent_after_a_loss_do_not_commit_what_was_made_before_it[lost]",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "where-it-began-is-kept-to-itself",
        "I15: who gets a partition begins where its group began",
        (
            Edit(
                "oncelog.aio.offsets:Offsets._begin",
                'if member is None or not places or self._options.start != "latest":',
                "if True:",
            ),
        ),
        {
            unit(
                "client/test_member_starts",
                "test_i15_who_gets_a_partition_begins_where_its_group_began[reading]",
            ): "assert (None",
        },
    ),
    Bug(
        "given-before-its-beginning-is-known",
        "I15: a partition whose beginning was refused has none yet",
        (
            Edit(
                "oncelog.aio.offsets:Offsets._begin",
                "            raise NotBegun(error) from error",
                "            return frozenset()",
            ),
        ),
        {
            unit(
                "client/test_member_starts",
                "test_a_beginning_that_was_refused_is_asked_for_again[STALE_POSITION]",
            ): "assert [None, None]",
        },
    ),
    Bug(
        "loss-hidden-by-a-refusal",
        "I21: a transaction whose input is lost never commits, whatever was refused beside it",
        (
            Edit(
                "oncelog.aio.member:Member._lose",
                "if self._is_in_use(lost) or self._positions.unknown():",
                "if self._is_in_use(lost):",
            ),
        ),
        {
            unit(
                FEEDING,
                "test_i21_a_commit_that_was_refused_beside_a_transaction_does_not_hide_its_loss"
                "[True]",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "lets-go-under-an-open-transaction",
        "I21: a partition stays until the transaction that it feeds has ended",
        (
            Edit(
                "oncelog.aio.member:Member._waits_for_a_transaction",
                "if not self._open or not self._is_in_use(going):",
                "if True:",
            ),
        ),
        {
            unit(
                FEEDING, "test_i21_letting_go_waits_for_the_end_of_an_open_transaction"
            ): "and it does not go yet",
        },
    ),
    Bug(
        "gives-on-what-must-go",
        "I21: of a partition that another one shall have nothing more is given",
        (
            Edit(
                "oncelog.aio.member:Member._let_go",
                "        self._positions.withhold(going)\n",
                "",
            ),
        ),
        {
            unit(
                FEEDING, "test_i21_letting_go_waits_for_the_end_of_an_open_transaction"
            ): "of what goes, nothing more is given",
        },
    ),
    Bug(
        "goes-before-the-user-has-committed",
        "I21: what on_revoked commits is committed before the partition goes",
        (
            Edit(
                "oncelog.aio.member:Member._let_go",
                "        try:\n            await self.give_up(read)",
                "        self.core.let_go(going, self._protocol.now_ms())\n"
                "        self._due.set()\n"
                "        await asyncio.sleep(1)\n"
                "        try:\n            await self.give_up(read)",
            ),
        ),
        {
            unit(
                MEMBER, "test_i21_what_goes_may_be_committed_in_on_revoked_and_only_then_goes"
            ): "nothing goes before this has returned",
        },
    ),
    Bug(
        "stopped-by-its-own-next-life",
        "who took its own instance over, after a silence, goes on",
        (
            Edit(
                "oncelog.aio.member:Member.told",
                "if not isinstance(error, errors.FencedInstance) or not is_earlier:",
                "if True:",
            ),
        ),
        {
            unit(
                FEEDING, "test_i23_who_replaced_itself_is_not_told_to_stop[True]"
            ): "FENCED_INSTANCE",
        },
    ),
    Bug(
        "transaction-without-its-member",
        "I23: offsets in a transaction carry the member that consumed them",
        (
            Edit(
                "oncelog.aio.consumed:Consumed.messages",
                "_commit_as(self._commits_as, message)",
                "pass",
            ),
        ),
        {
            unit(
                FEEDING,
                "test_i23_a_transaction_commits_in_the_name_of_its_consumer[at once]",
            ): "the group has living members",
        },
    ),
    Bug(
        "transaction-outlives-the-session",
        "KIP-447: a transaction of a member is idle for its session at most",
        (
            Edit(
                "oncelog.aio.terms:Terms.__init__",
                "self.timeout_ms = timeout_ms or place.timeout_ms_for(session_ms)",
                "self.timeout_ms = timeout_ms",
            ),
        ),
        {
            unit(
                FEEDING, "test_i23_a_transaction_commits_in_the_name_of_its_consumer[begun]"
            ): "assert {60000} == {9000}",
        },
    ),
    Bug(
        "one-transaction-holds-back-all",
        "a transaction in flight holds back the partitions of its offsets, and no other",
        (
            Edit(
                "oncelog.aio.starting:Starting._start_each",
                "held = _held_by(error, left)",
                "held = None",
            ),
        ),
        {
            unit(
                MEMBER, "test_a_partition_that_is_held_by_a_transaction_holds_back_no_other"
            ): "PENDING_TRANSACTION",
        },
    ),
    Bug(
        "what-came-later-begins-at-the-end",
        "I29: a member that begins at the end skips records of partitions that were added",
        (
            Edit(
                "oncelog.aio.member:Member._came_later",
                "return partition.number >= self._partitions_at_first.get(partition.topic_id, 0)",
                "return False",
            ),
        ),
        {
            unit(
                "client/test_member_starts",
                "test_i29_a_member_that_begins_at_the_end_skips_nothing_of_what_came_later",
            ): "each is read from its beginning",
        },
    ),
    Bug(
        "senders-are-not-asked",
        "I21: what spoils the input of a transaction spoils it also where send_offsets brought it",
        (
            Edit(
                "oncelog.aio.consumed:Consumed.progress",
                "self.require()",
                "pass",
            ),
        ),
        {
            unit(
                COMMITS,
                "test_i21_a_transaction_that_was_sent_offsets_of_lost_input_never_commits[False]",
            ): "Regex pattern did not match",
        },
    ),
    Bug(
        "offsets-sent-after-a-loss",
        "I21: offsets of before a loss are refused where they are sent",
        (
            Edit(
                "oncelog.aio.consumed:Consumed.add",
                "self.require()",
                "pass",
            ),
        ),
        {
            unit(
                COMMITS, "test_i21_what_was_read_before_a_loss_is_not_sent_after_it"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "two-lives-in-one-commit",
        "I23: all offsets of a commit are of the member that it names",
        (
            Edit(
                "oncelog.aio.consumed:_commit_as",
                'if message.HasField("member") and message.member.member_id != member.member_id:',
                "if False:",
            ),
        ),
        {
            unit(
                COMMITS, "test_i23_a_transaction_commits_for_one_member_of_a_group"
            ): "ILLEGAL_GENERATION",
        },
    ),
    Bug(
        "metadata-of-the-next-life",
        "I23: between a loss and the poll that takes notice of it a consumer has no standing",
        (
            Edit(
                "oncelog.aio.feeding:Feeding.metadata",
                "self.require()",
                "pass",
            ),
        ),
        {
            unit(
                COMMITS,
                "test_i23_after_a_loss_there_is_no_metadata_until_a_poll_takes_notice",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "loss-within-a-commit-not-seen",
        "I23: who is lost while a coordinator is waited for sends no offsets",
        (
            Edit(
                "oncelog.aio.consumed:Consumed.messages",
                "self.require()",
                "pass",
            ),
        ),
        {
            unit(
                COMMITS,
                "test_i23_a_commit_that_hung_is_not_made_in_the_name_of_the_next_life[transact]",
            ): "Regex pattern did not match",
        },
    ),
    Bug(
        "commit-in-the-name-of-the-next-life",
        "I23: what was read in one life is not committed in the name of the next",
        (
            Edit(
                "oncelog.aio.consumed:Consumed.messages",
                "self.require()",
                "self._commits_as = self._feeding and self._feeding.member_now()",
            ),
        ),
        {
            unit(
                COMMITS,
                "test_i23_a_commit_that_hung_is_not_made_in_the_name_of_the_next_life"
                "[begin_transaction]",
            ): "DID NOT RAISE",
            unit(
                COMMITS,
                "test_i23_a_commit_that_hung_is_not_made_in_the_name_of_the_next_life[transact]",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "another-members-step-taken-for-ones-own",
        "I21: a refused commit counts only where it was this member that made it",
        (
            Edit(
                "oncelog.aio.offsets:Offsets.commit",
                "if member is None and doubt.lost",
                "if doubt.lost",
            ),
        ),
        {
            unit(
                COMMITS,
                "test_i21_a_refused_commit_is_not_done_because_another_member_took_the_same_step",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "late-offsets-outlive-the-session",
        "KIP-447: a transaction that has begun with more than a member's session is not fed by it",
        (
            Edit(
                "oncelog.aio.place:Place.timeout_within",
                "if session_ms and has_begun and timeout_ms > session_ms:",
                "if False:",
            ),
        ),
        {
            unit(
                COMMITS, "test_offsets_sent_behind_large_output_say_what_to_do_and_then_fit"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "session-forgotten-by-the-producer",
        "KIP-447: who was sent a member's offsets begins its next transactions within its session",
        (
            Edit(
                "oncelog.aio.place:Place.timeout_within",
                "self._session_ms = self.timeout_ms_for(session_ms)",
                "pass",
            ),
        ),
        {
            unit(
                COMMITS, "test_offsets_sent_behind_large_output_say_what_to_do_and_then_fit"
            ): "INVALID_TIMEOUT",
        },
    ),
    Bug(
        "slow-answer-never-heard",
        "I23: a slow offset manager loses nobody, however soon the next heartbeat is due",
        (
            Edit(
                "oncelog._core.membership:Membership.answer_ms",
                "int(self._session_ms / HEARTBEATS_PER_SESSION)",
                "int(self._interval_ms)",
            ),
        ),
        {
            unit(
                CORE,
                "test_i23_a_slow_answer_is_waited_for_however_soon_the_next_heartbeat_is_due",
            ): "assert 500 == "
        },
    ),
)
