"""Bugs of call streams, subscriptions and peers: what they leave behind."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "subscription-ends-without-a-reason",
        "a call that is ended is told why",
        (
            Edit(
                "oncelog_server.partition_leader.fetching:Fetching.subscribe",
                "raise failed[-1]",
                "return",
            ),
        ),
        {
            unit(
                "partition_leader/test_reads",
                "test_subscribe_gives_what_comes_and_ends_when_nobody_leads",
            ): "DID NOT RAISE NotLeader",
        },
    ),
    Bug(
        "subscription-counted-before-admitted",
        "streams_max streams are let in, not one fewer",
        (
            Edit(
                "oncelog_server.runtime.rpc.server:RpcServer._pump",
                "self._admit_stream(self._stream_count)",
                "self._stream_count += 1\n"
                "            self._admit_stream(self._stream_count)\n"
                "            self._stream_count -= 1",
            ),
        ),
        {
            unit(
                "rpc/test_stream_ends",
                "test_a_subscription_that_has_ended_says_so_and_leaves_its_place_to_the_next",
            ): "Throttled"
        },
    ),
    Bug(
        "callers-lock-followers-out",
        "I29: however many streams callers open, followers get theirs",
        (
            Edit(
                "oncelog_server.runtime.rpc.server:RpcServer._pump_exchange",
                "self._admit_stream(self._exchange_count)",
                "self._admit_stream(self._stream_count)",
            ),
        ),
        {
            unit(
                "rpc/test_exchange", "test_i29_callers_cannot_lock_followers_out"
            ): "followers get theirs"
        },
    ),
    Bug(
        "place-of-a-subscription-kept",
        "a stream that has ended counts no more",
        (
            Edit(
                "oncelog_server.runtime.rpc.server:RpcServer._pump",
                "self._stream_count -= 1",
                "pass",
            ),
        ),
        {
            unit(
                "rpc/test_stream_ends",
                "test_a_subscription_that_has_ended_says_so_and_leaves_its_place_to_the_next",
            ): "Throttled"
        },
    ),
    Bug(
        "end-of-a-subscription-not-told",
        "whoever asked is told that a stream has ended",
        (Edit("oncelog_server.runtime.rpc.server:RpcServer._server_stream", "end.over()", "pass"),),
        {
            unit(
                "rpc/test_stream_ends",
                "test_a_subscription_that_has_ended_says_so_and_leaves_its_place_to_the_next",
            ): "nobody was told"
        },
    ),
    Bug(
        "two-calls-under-one-number",
        "every call that was read is answered once",
        (
            Edit(
                "oncelog_server.runtime.rpc.call_stream:CallStream._refusal",
                "if number in self._running:",
                "if False:",
            ),
        ),
        {
            unit(
                "rpc/test_stream_ends",
                "test_a_number_that_is_in_use_is_refused_and_answers_the_first_who_has_it",
            ): "two handlers ran under one number"
        },
    ),
    Bug(
        "time-over-before-its-handler-begins",
        "I31: every call ends, at its deadline at the latest",
        (
            Edit(
                "oncelog_server.runtime.rpc.call_stream:CallStream._ended",
                "if task.cancelled():",
                "if False:",
            ),
        ),
        {
            unit(
                "rpc/test_call_stream",
                "test_i31_a_call_whose_time_is_over_before_its_handler_begins_is_answered",
            ): "nobody answered it"
        },
    ),
    Bug(
        "earlier-deadline-waits-for-a-later-one",
        "I31: every call ends, at its deadline at the latest",
        (
            Edit(
                "oncelogpb.deadlines:Deadlines.add",
                "if at < self._next:",
                "if self._timer is None:",
            ),
        ),
        {
            unit(
                "wire/test_deadlines",
                "test_an_earlier_deadline_is_not_kept_waiting_by_a_later_one",
            ): "assert [] == [2]"
        },
    ),
    Bug(
        "last-answer-cut-off",
        "every call that was read is answered once, unless the stream ends first",
        (
            Edit(
                "oncelog_server.runtime.rpc.call_stream:CallStream._write",
                "self._writing = True",
                "pass",
            ),
        ),
        {
            unit(
                "rpc/test_stream_ends", "test_the_last_answer_is_written_before_the_stream_ends"
            ): "assert [] == [1]"
        },
    ),
    Bug(
        "handlers-outlive-their-stream",
        "handlers are cancelled, then it is told that their stream ended",
        (
            Edit(
                "oncelog_server.runtime.rpc.call_stream:CallStream.run",
                "tasks = [reader, writer, dry, *self._running.values()]",
                "tasks = [reader, writer, dry]",
            ),
        ),
        {
            unit(
                "rpc/test_stream_ends",
                "test_handlers_are_cancelled_before_it_is_told_that_their_stream_ended",
            ): "assert ['ended'] == ['cancelled', 'ended']"
        },
    ),
    Bug(
        "late-asker-not-told",
        "whoever asked is told that a stream has ended, also too late",
        (
            Edit(
                "oncelog_server.runtime.rpc.handling:StreamEnd.tell", "if self._over:", "if False:"
            ),
        ),
        {
            unit(
                "rpc/test_server", "test_who_asks_after_the_stream_has_ended_is_told_as_well"
            ): "'in time'] == "
        },
    ),
    Bug(
        "peer-hung-up-on-in-a-call",
        "a peer is hung up on only while nobody calls it",
        (
            Edit(
                "oncelog_server.runtime.rpc.peers:GrpcPeers._look",
                "(now_s if peer.busy else peer.used_s)",
                "peer.used_s",
            ),
        ),
        {
            unit(
                "rpc/test_stream_ends", "test_a_peer_is_not_hung_up_on_while_it_is_called"
            ): "Exception in callback GrpcPeers._look"
        },
    ),
    Bug(
        "peer-hung-up-on-between-calls",
        "a peer is hung up on once nobody has called it for so long, not so long after the first",
        (
            Edit(
                "oncelog_server.runtime.rpc.peers:GrpcPeers._give_back",
                "peer.used_s = asyncio.get_running_loop().time()",
                "pass",
            ),
        ),
        {
            unit(
                "rpc/test_peers", "test_a_peer_that_is_called_now_and_then_is_not_hung_up_on"
            ): "assert"
        },
    ),
    Bug(
        "closed-peers-call",
        "who is stopping begins no call",
        (Edit("oncelog_server.runtime.rpc.peers:GrpcPeers.call", "if self._closed:", "if False:"),),
        {
            unit(
                "rpc/test_stream_ends", "test_who_has_hung_up_on_everybody_calls_nobody"
            ): "DID NOT RAISE Unavailable"
        },
    ),
)
