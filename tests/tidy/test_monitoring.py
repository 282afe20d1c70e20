"""deploy/monitoring: alerts on metrics and labels that exist, each saying what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from oncelog_server.cli.app import COMMANDS
from oncelog_server.core.ids import CONTROL_PARTITIONS
from oncelog_server.core.roles import ROLES
from oncelog_server.runtime.observe import catalogue
from oncelog_server.runtime.observe.catalogue import MetricKind

ALERTS = Path(__file__).parents[2] / "deploy" / "monitoring" / "alerts.yaml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
METRICS = {
    metric.full_name(role): metric
    for role in catalogue.ROLES
    for metric in catalogue.metrics_of(role)
}
# What is said in docs/metrics.md of the metrics that a rule must name.
ALARM = "Alarm on it."
# Those of every role that speak of a committed log, which control topics have none of.
OF_COMMITTED_LOGS = {
    "settling_lag_ms",
    "settling_waits",
    "compaction_waits",
    "records_missing",
    "damaged_records",
}


def _metrics_of(rule: Any) -> list[str]:
    return [re.sub("_bucket$", "", name) for name in re.findall(r"oncelog_\w+", rule["expr"])]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_about_metrics_that_there_are(rule: Any) -> None:
    named = _metrics_of(rule)
    assert named
    for name in named:
        assert name in METRICS, f"{name} is not in docs/metrics.md"
        assert ("_bucket" in rule["expr"]) <= (METRICS[name].kind is MetricKind.DURATION)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_uses_labels_that_these_have(rule: Any) -> None:
    labels = {"instance", "le"}.union(*(METRICS[name].exposed_labels for name in _metrics_of(rule)))
    used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    for listed in re.findall(r"by \(([\w, ]+)\)", rule["expr"]):
        used |= {label.strip() for label in listed.split(",")}
    used |= set(re.findall(r"[{,](\w+)[=!]", rule["expr"]))
    assert used <= labels


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule: Any) -> None:
    assert rule["annotations"]["summary"]
    for command in re.findall(r"`oncelog (\w+)", rule["annotations"]["what_to_do"]):
        assert command in COMMANDS


def _to_alarm_on() -> Iterator[str]:
    for metric in catalogue.COMMON:
        if ALARM in metric.help:
            roles = ["partition_leader"] if metric.name in OF_COMMITTED_LOGS else ROLES
            yield from (metric.full_name(role) for role in roles)
    for role, metrics in catalogue.ROLES.items():
        yield from (metric.full_name(role) for metric in metrics if ALARM in metric.help)


@pytest.mark.parametrize("name", sorted(_to_alarm_on()))
def test_what_the_page_says_to_alarm_on_has_a_rule(name: str) -> None:
    assert any(name in _metrics_of(rule) for rule in RULES), f"no rule of {ALERTS.name} names it"


@pytest.mark.parametrize("role", ["coordinator", "offset_manager"])
def test_a_control_partition_without_a_leader_is_an_alarm(role: str) -> None:
    """`oncelog_node_partitions` leaves them out, so they have rules of their own, which also fire
    where no process is left that shows anything."""
    [rule] = [rule for rule in RULES if f"oncelog_{role}_leading" in rule["expr"]]
    assert rule["expr"].endswith(f"or vector(0)) < {CONTROL_PARTITIONS}")
    assert rule["labels"]["severity"] == "critical"


def test_a_process_that_is_gone_is_an_alarm() -> None:
    assert any(re.match(r"up == 0\b", rule["expr"]) for rule in RULES)
