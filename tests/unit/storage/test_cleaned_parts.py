"""A data log of which a part comes from a replica that is compacted further."""

from __future__ import annotations

from oncelog_server.core.cleaning import Cleanness
from tests.simulation.disk import FakeDisk
from tests.unit.storage.cleaned_logs import blocks_in, clean, held, must_be, unit_of
from tests.unit.storage.data_logs import open_data, settle


def test_i33_a_pass_goes_behind_what_another_has_taken_out() -> None:
    """That one was for more, and was cut off; or another replica's was, and what was copied from it
    has holes. Of a key, what stood between may be gone: nothing would tell that it superseded."""
    given_records = [(b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"b", b"4")]
    log = open_data(FakeDisk(), segment_bytes=100)
    settle(log, *(unit_of(at, [one]) for at, one in enumerate(given_records)))
    own = blocks_in(log)
    # Its first block is its own; what is behind comes from who is compacted to 3.
    clean(log, 3)
    cleanness = log.cleanness
    copied = open_data(FakeDisk(), segment_bytes=100)
    settle(copied, own[0], *blocks_in(log)[1:])
    copied.note_cleanness(Cleanness().with_part(cleanness, first=1, end=4) or Cleanness())
    assert [it.offset for it in held(copied)] == [0, 2, 3]
    clean(copied, 2)
    assert held(copied) == must_be(given_records, 3, 0)
    assert copied.cleanness == Cleanness(3, 0, 3, 0)
