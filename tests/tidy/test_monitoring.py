"""deploy/monitoring: alerts on metrics and labels that exist, each saying what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from oncelog_server.cli.app import COMMANDS
from oncelog_server.runtime.observe import catalogue
from oncelog_server.runtime.observe.catalogue import MetricKind

ALERTS = Path(__file__).parents[2] / "deploy" / "monitoring" / "alerts.yaml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
METRICS = {
    metric.full_name(role): metric
    for role in catalogue.ROLES
    for metric in catalogue.metrics_of(role)
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
