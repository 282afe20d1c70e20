"""docs/clients.md says of every reason and every call what the code does: its tables are made from
the protos, whose comments are held to what errors carry."""

from __future__ import annotations

import pytest

from oncelogpb.errors import BY_REASON
from tests.tidy.error_metadata import ADDED_LATER, known_keys, raised
from tests.tidy.wire_tables import PAGE, WRITE_IT, calls, reasons, unsaid, written_into

# Of a Transact they say which one they are about.
SAYS_WHICH_ONE_SHOT = ("UNKNOWN_OUTCOME", "TRANSACTION_ENDED")
NAMED = {reason.name: reason.named for reason in reasons()}


def test_the_page_has_the_tables() -> None:
    written = PAGE.read_text()
    assert written == written_into(written), WRITE_IT


def test_the_protos_say_what_each_reason_and_each_call_needs() -> None:
    assert list(unsaid()) == []
    assert [reason.name for reason in reasons()] == list(BY_REASON)
    assert len(calls()) > 30


def test_an_error_carries_what_its_reason_names() -> None:
    found = raised()
    assert len(found) > 100, "the search finds them"
    surplus = [one for one in found if one.key not in NAMED[one.reason]]
    assert not surplus, "name the key in the reason's comment in errors.proto, in backquotes"


@pytest.mark.parametrize("reason", BY_REASON)
def test_what_a_reason_names_is_carried(reason: str) -> None:
    carried = {one.key for one in raised() if one.reason == reason}
    later = ADDED_LATER if reason in SAYS_WHICH_ONE_SHOT else frozenset()
    assert NAMED[reason] & known_keys() <= carried | later, "nobody sends it any more"
