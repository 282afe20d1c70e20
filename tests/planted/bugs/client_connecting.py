"""Bugs of the client's first contact, and of its certificates."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "first-contact-tried-until-the-deadline",
        "I31: a first contact ends within three seconds, and says what is wrong",
        (
            Edit(
                "oncelog._metadata:Metadata._why_nobody",
                "if passes and spent_ms < self._round_ms * (CONTACT_ROUNDS - 1):",
                "if passes:",
            ),
        ),
        {
            unit(
                "client/test_connecting",
                "test_i31_a_first_contact_ends_within_three_seconds_whatever_the_deadline",
            ): "<= 6.5",
        },
    ),
    Bug(
        "session-stays-with-the-old-certificate",
        "what is bound to a stream moves to the connection of the renewed certificate",
        (
            Edit(
                "oncelog._transport:GrpcTransport._replace_lines",
                "self._move_watches(list(self._watches))",
                "pass",
            ),
        ),
        {
            unit(
                "client/test_connecting",
                "test_a_session_moves_to_the_connection_of_the_renewed_certificate",
            ): "['stays']",
        },
    ),
    Bug(
        "dead-processes-asked-one-by-one",
        "I29: the processes of a machine that is gone are not waited for, each in its turn",
        (
            Edit(
                "oncelog._first_answer:first_answer",
                "timeout=NEXT_AFTER_MS / 1000 if left else None",
                "timeout=None",
            ),
        ),
        {
            unit(
                "client/test_finding",
                "test_i29_a_machine_that_is_gone_is_not_waited_for_process_by_process",
            ): "each was waited for",
        },
    ),
)
