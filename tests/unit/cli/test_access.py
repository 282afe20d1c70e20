"""acl and quota: what they ask, and what they print."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import Result

from oncelog.access import VERBS
from oncelog_server.core.access import VERBS_OF
from oncelogpb.errors import PermissionDenied
from oncelogpb.v1 import cluster_pb2 as pb
from tests.access.world import message_of, rule_of
from tests.unit.cli.scripted import Cluster, Silence, json_of

Run = Callable[..., Result]


def rules(*lines: str) -> list[pb.AccessRule]:
    found = [message_of(rule) for line in lines for rule in rule_of(line)]
    for message in found:
        message.added_by, message.added_ms = "root", 1_767_225_600_000
    return found


def asked(cluster: Cluster, method: str) -> list[pb.AccessRule]:
    return [rule for request in cluster.requests(method) for rule in request.rules]


ADDING: list[tuple[str, list[str]]] = [
    ("alice read,write payments", ["alice read,write topic:payments"]),
    ("alice read topic:payments*", ["alice read topic:payments*"]),
    ("team-* read group:g", ["team-* read group:g"]),
    ("ops alter group:g", ["ops alter group:g"]),
    ("ops all group:* --deny", ["deny ops read,describe,alter,delete group:*"]),
    ("alice all producer:p --deny", ["deny alice write,fence producer:p"]),
    ("spiffe://prod/a describe transaction:p", ["spiffe://prod/a describe transaction:p"]),
]


@pytest.mark.parametrize(("words", "expected"), ADDING)
def test_rules_are_added_and_removed_by_the_same_words(
    run: Run, words: str, expected: list[str]
) -> None:
    wanted = [message_of(rule) for line in expected for rule in rule_of(line)]
    cluster = Cluster(
        cluster__add_rules=pb.AddRulesReply(added=1),
        cluster__remove_rules=pb.RemoveRulesReply(removed=1),
    )
    assert run(cluster, f"acl add {words}").exit_code == 0
    assert asked(cluster, "cluster.add_rules") == wanted
    assert run(cluster, f"acl remove {words}").exit_code == 0
    assert asked(cluster, "cluster.remove_rules") == wanted


def test_what_a_rule_may_say_is_what_the_services_ask_for(run: Run) -> None:
    """A verb of groups was missing: what a refusal advised could not be typed."""
    asked_for = {str(kind): tuple(map(str, verbs)) for kind, verbs in VERBS_OF.items()}
    assert {kind: sorted(verbs) for kind, verbs in VERBS.items()} == {
        kind: sorted(verbs) for kind, verbs in asked_for.items()
    }
    table = run(Cluster(), "acl --help").output
    for kind, verbs in asked_for.items():
        (line,) = re.findall(rf"^ *{kind}  .*", table, re.MULTILINE)
        assert [verb for verb in verbs if verb not in line] == []


def test_a_star_is_part_of_the_name_where_that_is_said(run: Run) -> None:
    cluster = Cluster(cluster__add_rules=pb.AddRulesReply(added=1))
    assert run(cluster, "acl add alice* read group:g* --literal").exit_code == 0
    (rule,) = asked(cluster, "cluster.add_rules")
    assert (rule.identity.text, rule.identity.prefixed) == ("alice*", False)
    assert (rule.name.text, rule.name.prefixed) == ("g*", False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("acl add alice bless payments", "allowed: create, read, write"),
        ("acl add alice read queue:x", "topic:NAME, group:NAME"),
        ("acl add alice read", "Say who, what and to what"),
        ("acl test alice abort topic:x", "allowed: create, read"),
        ("quota set alice", "Limit --bytes, --calls or both"),
    ],
)
def test_what_makes_no_sense_is_told_before_anybody_is_asked(
    run: Run, words: str, said: str
) -> None:
    cluster = Cluster()
    told = run(cluster, words)
    assert told.exit_code != 0
    assert said in told.stderr
    assert cluster.asked == []


def test_what_is_listed_can_be_added_again(run: Run, tmp_path: Path) -> None:
    listed = rules("alice read topic:t*", "deny team-* write topic:t")
    cluster = Cluster(
        cluster__list_rules=pb.ListRulesReply(rules=listed),
        cluster__add_rules=pb.AddRulesReply(added=2),
    )
    shown = json_of(run(cluster, "acl list --json"))
    assert shown[0]["added"] == "2026-01-01T00:00:00.000Z"
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(shown))
    assert run(cluster, f"acl add --file {path}").exit_code == 0
    for rule in listed:
        rule.ClearField("added_by")
        rule.ClearField("added_ms")
    assert asked(cluster, "cluster.add_rules") == listed
    path.write_text('[{"effect": "allow"}]')
    wrong = run(cluster, f"acl add --file {path}")
    assert wrong.exit_code == 2
    assert "acl list --json" in wrong.stderr


def test_many_rules_are_sent_in_parts(run: Run, tmp_path: Path) -> None:
    many = rules(*(f"u{number} read topic:t" for number in range(250)))
    cluster = Cluster(
        cluster__list_rules=pb.ListRulesReply(rules=many),
        cluster__add_rules=lambda request: pb.AddRulesReply(added=len(request.rules)),
    )
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(json_of(run(cluster, "acl list --json"))))
    assert json_of(run(cluster, f"acl add --file {path} --json"))["added"] == 250
    assert [len(r.rules) for r in cluster.requests("cluster.add_rules")] == [100, 100, 50]


def test_people_see_rules_as_a_table(run: Run) -> None:
    cluster = Cluster(cluster__list_rules=pb.ListRulesReply(rules=rules("alice read topic:t*")))
    table = run(cluster, "acl list alice").stdout
    assert "allow" in table
    assert "topic:t*" in table
    (request,) = cluster.requests("cluster.list_rules")
    assert request.identity == "alice"
    empty = Cluster(cluster__list_rules=pb.ListRulesReply())
    assert "only operators may" in run(empty, "acl list").stdout


def test_a_question_is_answered_with_the_rule_and_what_would_help(run: Run) -> None:
    (deny,) = rules("deny alice write topic:t")
    reply = pb.TestAccessReply(
        because="a rule denies it",
        rule=deny,
        would_allow=rules("alice write topic:t"),
        mode="warn",
    )
    cluster = Cluster(cluster__test_access=reply)
    told = run(cluster, "acl test alice write t")
    assert told.exit_code == 0
    assert "deny alice write topic:t" in told.stdout
    assert "oncelog acl add alice write topic:t" in told.stdout
    # An added rule alone would change nothing.
    assert "oncelog acl remove alice write topic:t --deny" in told.stdout
    assert "nothing is refused now" in told.stderr
    (request,) = cluster.requests("cluster.test_access")
    assert (request.identity, request.verb, request.kind, request.name) == (
        "alice",
        pb.ACCESS_VERB_WRITE,
        pb.ACCESS_KIND_TOPIC,
        "t",
    )
    as_json = json_of(run(cluster, "acl test alice write t --json"))
    assert as_json["allowed"] is False
    assert as_json["rule"]["effect"] == "deny"


def test_who_is_refused_is_told_what_helps(run: Run) -> None:
    cluster = Cluster(cluster__list_rules=PermissionDenied("bob may not call list_rules"))
    told = run(cluster, "acl list")
    assert told.exit_code == 1
    assert "have an operator allow it" in told.stderr


def test_quotas_are_set_listed_and_lifted(run: Run) -> None:
    held: list[Any] = []

    def set_(request: pb.SetQuotasRequest) -> pb.SetQuotasReply:
        held[:] = request.quotas
        return pb.SetQuotasReply()

    cluster = Cluster(
        cluster__set_quotas=set_,
        cluster__list_quotas=lambda request: pb.ListQuotasReply(quotas=held),
        cluster__remove_quotas=pb.RemoveQuotasReply(removed=1),
    )
    assert run(cluster, "quota set batch-* --bytes 1000").exit_code == 0
    (shown,) = json_of(run(cluster, "quota list --json"))
    assert shown["identity"] == "batch-"
    assert shown["identity_prefixed"] is True
    assert (shown["bytes_per_second"], shown["calls_per_second"]) == (1000, None)
    assert "no limit" in run(cluster, "quota list").stdout
    assert "lifted" in run(cluster, "quota remove batch-*").stdout
    (request,) = cluster.requests("cluster.remove_quotas")
    assert request.identities[0].prefixed


def test_journals_are_for_operators_and_topics_are_described_without(run: Run) -> None:
    refused = Silence(grpc.StatusCode.PERMISSION_DENIED)
    cluster = Cluster(partition_leader__describe_journals=lambda request: refused)
    cluster.nodes["h"] = refused
    told = run(cluster, "topic describe payments")
    assert told.exit_code == 0
    assert "operators only" in told.stderr
