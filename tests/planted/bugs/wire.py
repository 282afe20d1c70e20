"""Bugs of what both sides put on the wire and read from it: batches, and the calls of a stream."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "highest-time-of-the-last-row",
        "I26: a batch is what its sender says it is",
        (
            Edit(
                "oncelogpb.records:_validate_rows",
                "max(row.timestamp_us for row in rows.rows)",
                "rows.rows[-1].timestamp_us",
            ),
        ),
        {
            unit(
                "wire/test_records", "test_the_highest_time_is_what_it_is_said_to_be"
            ): "max_timestamp_us says 5, the records say 3",
        },
    ),
    Bug(
        "more-rows-than-claimed",
        "I26: a batch is what its sender says it is",
        (
            Edit(
                "oncelogpb.records:_validate_rows",
                "if len(rows.rows) != record_count:",
                "if len(rows.rows) < record_count:",
            ),
        ),
        {
            unit(
                "wire/test_records", "test_rows_are_as_many_as_they_are_said_to_be[1]"
            ): "DID NOT RAISE CorruptBatch",
        },
    ),
    Bug(
        "negative-claim-hides-a-bomb",
        "nothing is decompressed before its claimed size is known to fit",
        (
            Edit(
                "oncelogpb.arrow_message:decompressed_bytes",
                "if claimed < -1:",
                "if False:",
            ),
        ),
        {
            unit(
                "wire/test_records", "test_claims_that_make_no_sense_are_refused"
            ): "DID NOT RAISE Malformed",
        },
    ),
    Bug(
        "left-over-payload-for-the-next-call",
        "I26: a batch holds the bytes that its sender gave it",
        (
            Edit(
                "oncelogpb.in_place:pair",
                " if position == len(payloads) else None",
                "",
            ),
        ),
        {
            unit(
                "wire/test_in_place",
                "test_a_call_that_turns_into_another_gives_its_payloads_to_nobody",
            ): "left to generated code",
        },
    ),
    Bug(
        "sent-bytes-wait-for-ever",
        "what is sent waits no more",
        (
            Edit(
                "oncelogpb.calls:CallStream._take",
                "            self._waiting_bytes -= call.size\n",
                "",
            ),
        ),
        {
            unit(
                "wire/test_calls", "test_what_was_sent_or_failed_waits_no_more"
            ): "waiting_bytes_max = 100",
        },
    ),
    Bug(
        "refused-stream-ends-a-session",
        "a session ends with a stream that was accepted",
        (
            Edit(
                "oncelogpb.calls:CallStream._run",
                " if writer is not None else ()",
                "",
            ),
        ),
        {
            unit(
                "wire/test_calls", "test_what_was_sent_or_failed_waits_no_more"
            ): "no session ended: there was none",
        },
    ),
    Bug(
        "answer-to-another-question-taken",
        "I5: only an answer to what was asked says that it was done",
        (
            Edit(
                "oncelogpb.calls:CallStream._read",
                'elif answer.WhichOneof("reply") == call.method:',
                "elif True:",
            ),
        ),
        {
            unit(
                "wire/test_calls", "test_an_answer_to_another_question_is_no_answer"
            ): ", UnknownOutcome)",
        },
    ),
    Bug(
        "stopped-process-holds-calls",
        "I31: calls to a process that is stopped end soon",
        (
            Edit(
                "oncelog._transport:GrpcTransport._open_channel",
                "list(calls.CHANNEL_OPTIONS)",
                "[one for one in calls.CHANNEL_OPTIONS if 'ping_timeout' not in one[0]]",
            ),
        ),
        {
            unit(
                "client/test_silent_process",
                "test_i31_calls_to_a_stopped_process_end_long_before_their_deadline",
            ): "they wait for their deadline",
        },
    ),
)
