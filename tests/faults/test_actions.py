"""ONCELOG_FAILPOINTS: what it may say, and what happens then."""

from __future__ import annotations

import pytest

from oncelog_server.core import failpoints
from oncelog_server.core.failpoints import Repeat
from oncelog_server.runtime.failpoint_actions import VARIABLE, Armed, arm_from_environment, parse
from oncelogpb.errors import UnknownOutcome

PRODUCE = "serve.partition_leader.produce"


def test_settings_are_parsed() -> None:
    assert parse(f"driver.append.after=kill@3  {PRODUCE}.after=lose") == {
        "driver.append.after": Armed("kill", 3),
        f"{PRODUCE}.after": Armed("lose", 1),
    }


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("driver.append.after", "<failpoint>=<action>"),
        ("driver.append.after=kill@0", "<failpoint>=<action>"),
        ("driver.apend.after=kill", "no failpoint 'driver.apend.after'"),
        ("driver.append.after=dance", "'dance' cannot happen"),
        ("driver.append.after=lose", "'lose' cannot happen at driver.append.after"),
        (f"{PRODUCE}.after=repeat", "'repeat' cannot happen"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(setting: str, named: str) -> None:
    with pytest.raises(ValueError, match="ONCELOG_FAILPOINTS") as refused:
        parse(setting)
    assert named in str(refused.value)


def test_it_happens_at_the_passing_that_is_named_and_only_there() -> None:
    setting = f"{PRODUCE}.after=lose@2 {PRODUCE}.before=late"
    assert arm_from_environment({VARIABLE: setting})
    try:
        assert failpoints.armed()
        assert failpoints.reach(f"{PRODUCE}.before") is Repeat.LATE
        assert failpoints.reach(f"{PRODUCE}.before") is None
        failpoints.reach(f"{PRODUCE}.after")
        with pytest.raises(UnknownOutcome):
            failpoints.reach(f"{PRODUCE}.after")
        failpoints.reach(f"{PRODUCE}.after")
        failpoints.reach("driver.append.before")
    finally:
        failpoints.disarm()


def test_unset_nothing_is_armed() -> None:
    assert not arm_from_environment({})
    assert not failpoints.armed()
