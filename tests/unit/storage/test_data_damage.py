"""What is known to be damaged of a data log, until it is looked at again."""

from __future__ import annotations

from oncelog_server.runtime.storage.data_damage import KNOWN_DAMAGE_MAX, KnownDamage
from oncelog_server.runtime.storage.data_walk import Damage


def ranges(known: KnownDamage, begin: int = 0, end: int = 1 << 40) -> list[tuple[int, int]]:
    return [(it.first_offset, it.end_offset) for it in known.between(begin, end)]


def found(known: KnownDamage, first: int, end: int) -> None:
    known.found("p/data/0.data", Damage(7, first, end, "it rotted"))


def test_what_is_found_anew_takes_the_place_of_what_it_touches() -> None:
    known = KnownDamage("p/data")
    found(known, 10, 20)
    found(known, 30, 40)
    found(known, 15, 25)
    assert ranges(known) == [(15, 25), (30, 40)]
    known.lacks(0, 16)
    assert ranges(known) == [(0, 16), (30, 40)]
    known.forget(39, 41)
    assert ranges(known) == [(0, 16)]


def test_what_was_deleted_or_cut_is_not_told() -> None:
    known = KnownDamage("p/data")
    found(known, 10, 20)
    found(known, 30, 40)
    assert ranges(known, 20) == [(30, 40)]
    assert ranges(known, 0, 30) == [(10, 20)]


def test_an_error_names_file_byte_and_offsets_and_whose_it_is() -> None:
    known = KnownDamage("p/data")
    error = known.found("p/data/0.data", Damage(7, 10, 20, "it rotted")).corrupt()
    assert error.metadata == {"file": "p/data/0.data", "position": "7"}
    assert "Offsets 10 to 20" in str(error)
    assert known.is_in(error)
    assert known.is_in(known.lacks(0, 5).corrupt())
    assert not KnownDamage("q/data").is_in(error)


def test_of_a_disk_that_rots_everywhere_a_bounded_part_is_known() -> None:
    known = KnownDamage("p/data")
    for first in range(0, 3 * KNOWN_DAMAGE_MAX, 2):
        found(known, first, first + 1)
    assert len(ranges(known)) == KNOWN_DAMAGE_MAX
    known.forget(0, 100)
    found(known, 9_999, 10_000)
    assert ranges(known)[-1] == (9_999, 10_000)
