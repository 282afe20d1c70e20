"""Every reason has an exit code and words about what to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oncelog.errors import CannotConnect
from oncelog_server.cli import failures
from oncelog_server.cli.app import oncelog as app
from oncelogpb import errors
from oncelogpb.v1 import cluster_pb2
from tests.unit.cli.scripted import Cluster
from tests.unit.rpc.authority import Authority
from tests.unit.rpc.harness import run as serve_and_run
from tests.unit.rpc.harness import serving

REASONS = sorted(errors.BY_REASON)
UNREACHABLE = {"UNAVAILABLE", "NOT_LEADER", "LOADING", "UNKNOWN_OUTCOME"}


@pytest.mark.parametrize("reason", REASONS)
def test_a_refusal_says_reason_message_and_what_to_do(
    reason: str, run: Callable[..., Result]
) -> None:
    error = errors.BY_REASON[reason]("these words", limit="A_LIMIT")
    result = run(Cluster(partition_leader__list_topics=error), "topic list")
    assert result.exit_code == (3 if reason in UNREACHABLE else 1)
    assert result.stdout == ""
    assert reason in result.stderr
    assert "these words" in result.stderr
    assert "limit: A_LIMIT" in result.stderr
    assert failures.advice(error) in result.stderr


def test_a_role_that_is_away_is_no_wrong_address(run: Callable[..., Result]) -> None:
    error = CannotConnect("no partition_leader process is alive", role="partition_leader")
    result = run(Cluster(partition_leader__list_topics=error), "topic list")
    assert result.exit_code == 3
    assert failures.ROLE_AWAY in result.stderr
    assert "--bootstrap" not in result.stderr


@pytest.mark.parametrize("reason", REASONS)
def test_a_refusal_as_json(reason: str, run: Callable[..., Result]) -> None:
    error = errors.BY_REASON[reason]("[bold]words[/]", tx_id=255)
    result = run(Cluster(partition_leader__list_topics=error), "topic list --json")
    told = json.loads(result.stderr)["error"]
    assert (told["reason"], told["message"]) == (reason, "[bold]words[/]")
    assert told["may_have_applied"] is error.may_have_applied
    assert told["metadata"] == {"tx_id": "00000000000000ff"}


@pytest.mark.parametrize("reason", sorted(UNREACHABLE))
def test_an_etcd_that_is_away_is_said_whatever_it_looks_like(
    reason: str, run: Callable[..., Result]
) -> None:
    """Else it is told as a leader that is changing."""
    error = errors.BY_REASON[reason]("these words")
    away = cluster_pb2.GetMetadataReply(etcd_reachable=False)
    cluster = Cluster(partition_leader__list_topics=error, cluster__get_metadata=away)
    result = run(cluster, "topic list")
    assert result.exit_code == 3
    assert "these words" in result.stderr
    assert failures.ETCD_AWAY in result.stderr
    assert failures.advice(error) not in result.stderr
    told = json.loads(run(cluster, "topic list --json").stderr)["error"]
    assert told["advice"] == failures.ETCD_AWAY
    # Where nobody can say, it is not guessed.
    nobody = Cluster(
        partition_leader__list_topics=error, cluster__get_metadata=errors.Unavailable("no")
    )
    assert failures.advice(error) in run(nobody, "topic list").stderr


def test_markup_in_a_message_is_shown_as_it_is(run: Callable[..., Result]) -> None:
    error = errors.InvalidArgument("no [red] here")
    result = run(Cluster(partition_leader__list_topics=error), "topic list")
    assert "no [red] here" in result.stderr


def test_all_advice_is_about_reasons_that_exist() -> None:
    assert set(failures.ADVICE) <= {*REASONS, CannotConnect.reason}


@pytest.mark.parametrize(
    "line",
    [
        "topic alter payments",
        "topic create payments --config broken",
        "tx describe xyz",
        "tx resolve 5 payments/0",
        "tx resolve 5 payments/0 --drop --expose",
        "group reset-offsets g payments=soon",
        "group reset-offsets g payments/7=1",
        "consume payments --from yesterday",
        "consume payments --partition 9",
        "consume payments --isolation raw --group g",
        "consume payments --format {valeu}",
        "consume payments --format values",
        "consume payments --format {value",
        "consume payments --format {value:octal}",
        "consume payments --delimiter \\z",
        "consume payments --until 5",
        "consume payments --until 5m --follow",
        "produce payments --name n",
        "cluster unclean-elect",
        "cluster unclean-elect nothing --accept-loss",
        "topic list --tls-cert /dev/null",
        "up --ports-from 7400 --free-ports",
        "serve nobody",
        "serve coordinator --set node.lease_millis=1",
        "serve coordinator",
        "serve coordinator --etcd localhost",
        "tx describe 0",
        "tx describe 10000000000000000",
        "produce \udcff",
        "consume payments --group \udcff",
    ],
)
def test_wrong_usage_is_exit_code_2(line: str, run: Callable[..., Result]) -> None:
    result = run(Cluster(), line)
    assert (result.exit_code, result.stdout) == (2, ""), result.output


def test_a_cluster_without_etcd_is_not_told_of_leaders(run: Callable[..., Result]) -> None:
    error = errors.Unavailable("none of them may lead", etcd="unreachable")
    result = run(Cluster(partition_leader__list_topics=error), "topic list")
    assert failures.ETCD_AWAY in result.stderr


def test_who_reaches_nobody_is_told_as_such(run: Callable[..., Result]) -> None:
    error = CannotConnect("nobody listens", problem="refused")
    result = run(Cluster(partition_leader__list_topics=error), "topic list")
    assert result.exit_code == 3
    assert "nobody listens" in result.stderr
    assert failures.ADVICE["CANNOT_CONNECT"] in result.stderr


@pytest.mark.parametrize(
    ("problem", "flags"),
    [
        ("tls_wanted", ["--tls-ca", "--tls"]),
        ("tls_not_spoken", ["--no-tls", "oncelog profile"]),
        ("certificate", ["--tls-ca", "--tls-server-name"]),
        ("client_certificate", ["--tls-cert", "--tls-key"]),
        ("refused", ["--bootstrap", "oncelog up"]),
    ],
)
def test_who_cannot_connect_is_told_of_flags_not_of_the_python_client(
    problem: str, flags: list[str], tmp_path: Path
) -> None:
    issued = Authority(tmp_path).issue("client")
    other = Authority(tmp_path / "other", "another").issue("x")
    with_tls = {
        "tls_not_spoken": ["--tls-ca", str(issued.ca)],
        "certificate": ["--tls-ca", str(other.ca)],
        "client_certificate": ["--tls-ca", str(issued.ca)],
    }.get(problem, [])

    async def story() -> None:
        tls = None if problem in ("tls_not_spoken", "refused") else issued
        async with serving("Cluster", tls=tls) as (rpc, _):
            address = "127.0.0.1:1" if problem == "refused" else f"127.0.0.1:{rpc.port}"
            line = ["topic", "list", "--timeout", "10", "--bootstrap", address, *with_tls]
            told = await asyncio.to_thread(CliRunner().invoke, app, line)
            as_json = await asyncio.to_thread(CliRunner().invoke, app, [*line, "--json"])
        assert (told.exit_code, as_json.exit_code) == (3, 3), told.output
        assert f"problem: {problem}" in told.stderr
        assert address in told.stderr
        shown = json.loads(as_json.stderr)["error"]
        for text in (told.stderr, shown["message"] + shown["advice"]):
            assert all(flag in text for flag in flags), text
            for wording in ("oncelog.Tls", "tls=", "tls.", "`tls`", "ca_file"):
                assert wording not in text, text

    serve_and_run(story())
