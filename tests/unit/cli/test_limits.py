"""The table of limits is complete against the code and the same as the document."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.options import ConnectOptions, ConsumerOptions, ProducerOptions, TableOptions
from oncelog_server.cli import limits
from oncelog_server.cli.compose import limits_of
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.runtime.config import help_of
from oncelog_server.runtime.node_config import NodeConfig
from oncelog_server.runtime.observe import catalogue
from oncelog_server.runtime.observe.catalogue import MetricKind
from oncelog_server.runtime.outside import NodeLimits
from oncelog_server.runtime.rpc.limits import RpcLimits
from oncelogpb.errors import BY_REASON

ROOT = Path(__file__).parents[3]
SOURCES = [ROOT / "services", ROOT / "protos/src/oncelogpb", ROOT / "clients/python/src/oncelog"]
# Calls that make an error of a limit, and which of their arguments is its name.
MAKERS = {"_too_large": 0, "_limit": 0, "throttled": 0, "_throttled": 0, "require_few": 2}


def test_the_document_has_the_table() -> None:
    written = (ROOT / "docs" / "operating.md").read_text()
    again = limits.written_into(written)
    assert written == again, "run: python -m oncelog_server.cli.limits docs/operating.md"


@pytest.mark.parametrize(
    "kind", [NodeConfig, RpcLimits, CoordinatorConfig, PartitionLeaderConfig, OffsetManagerConfig]
)
def test_a_limit_is_not_told_with_the_words_of_another_setting(kind: Any) -> None:
    """A field without a comment of its own has that of the field above it, and the table would show
    its default beside words that speak of both."""
    told = help_of(kind)
    for name in told.keys() & limits.names():
        shared = {other for other, text in told.items() if text == told[name]}
        assert shared <= limits.names(), f"give {name} a comment of its own"


def test_what_the_node_needs_of_its_settings_reaches_it() -> None:
    """Also what has a default there."""
    config = NodeConfig()
    for field in dataclasses.fields(NodeLimits):
        value = getattr(config, field.name, None)
        if type(value) is int:
            more: dict[str, Any] = {field.name: value + 1}
            changed = dataclasses.replace(config, **more)
            assert getattr(limits_of(changed), field.name) == value + 1, field.name


@pytest.mark.parametrize(
    "kind",
    [
        NodeConfig,
        RpcLimits,
        CoordinatorConfig,
        PartitionLeaderConfig,
        OffsetManagerConfig,
        ProducerOptions,
        ConsumerOptions,
        TableOptions,
        ConnectOptions,
    ],
)
def test_every_setting_that_is_a_limit_stands_in_the_table(kind: Any) -> None:
    found = {field.name for field in dataclasses.fields(kind) if field.name.endswith("_max")}
    assert found <= limits.names() | limits.NO_LIMITS


def test_every_limit_that_an_error_names_stands_in_the_table() -> None:
    named = {name for source in SOURCES for name in _named_in(source)}
    assert len(named) > 20, "the search finds them"
    assert named <= limits.names(), "add it to services/oncelog_server/cli/limits.py"


def _named_in(source: Path) -> Iterator[str]:
    for path in source.rglob("*.py"):
        if path == ROOT / "services/oncelog_server/cli/limits.py" or path.name.endswith("_pb2.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield from _names_of(node)


def _names_of(call: ast.Call) -> Iterator[str]:
    values = [keyword.value for keyword in call.keywords if keyword.arg == "limit"]
    function = call.func.attr if isinstance(call.func, ast.Attribute) else call.func
    name = function.id if isinstance(function, ast.Name) else function
    place = MAKERS.get(name) if isinstance(name, str) else None
    if place is not None and place < len(call.args):
        values.append(call.args[place])
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def test_every_metric_that_the_table_names_is_a_gauge_of_the_catalogue() -> None:
    gauges = {
        metric.full_name(role)
        for role in catalogue.ROLES
        for metric in catalogue.metrics_of(role)
        if metric.kind is MetricKind.GAUGE
    }
    assert {one.metric for s in limits.SECTIONS for one in s.limits if one.metric} <= gauges


def test_names_are_told_once_in_a_section_and_reasons_are_real() -> None:
    for section in limits.SECTIONS:
        told = [limit.name for limit in section.limits]
        assert len(set(told)) == len(told)
        for limit in section.limits:
            assert limit.meaning
            assert limit.outcome
            assert limit.value > 0 or "0: no limit" in limit.meaning
            assert limit.error is None or limit.error.reason in BY_REASON
