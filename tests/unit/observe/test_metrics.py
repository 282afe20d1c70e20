"""The catalogue is what is measured, what is documented, and what the code says."""

from __future__ import annotations

import ast
import io
import re
import socket
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from oncelog_server.runtime.observe import catalogue
from oncelog_server.runtime.observe.catalogue import MetricKind
from oncelog_server.runtime.observe.logs import Log
from oncelog_server.runtime.observe.metrics import Metrics, UndeclaredMetric
from oncelog_server.runtime.rpc.tls import Asked, TlsFiles
from tests.unit.rpc.authority import Authority

ROOT = Path(__file__).parents[3]
SERVICES = ROOT / "services" / "oncelog_server"
PARTICIPANTS = ("partition_leader", "offset_manager")
KINDS = {"count": MetricKind.COUNTER, "gauge": MetricKind.GAUGE, "observe": MetricKind.DURATION}


def exposed(metrics: Metrics, name: str) -> list[str]:
    """The lines of a metric."""
    lines = generate_latest(metrics.registry).decode().splitlines()
    return [line for line in lines if line.startswith(name)]


def reporter_of(role: str) -> Any:
    metrics = Metrics()
    return metrics, metrics.reporter(role, Log(stream=io.StringIO()))


def test_metrics_md_is_the_catalogue() -> None:
    written = (ROOT / "docs" / "metrics.md").read_text()
    assert written == catalogue.as_markdown(), (
        "run: python -m oncelog_server.runtime.observe.catalogue > docs/metrics.md"
    )


@pytest.mark.parametrize("role", catalogue.ROLES)
def test_every_declared_metric_can_be_reported_and_is_exposed(role: Any) -> None:
    metrics, reporter = reporter_of(role)
    for metric in catalogue.metrics_of(role):
        labels = dict.fromkeys(metric.labels, "x/0")
        {
            MetricKind.COUNTER: reporter.count,
            MetricKind.GAUGE: reporter.gauge,
            MetricKind.DURATION: reporter.observe,
        }[metric.kind](metric.name, 3, **labels)
    text = generate_latest(metrics.registry).decode()
    for metric in catalogue.metrics_of(role):
        name = metric.full_name(role)
        assert f"# HELP {name} " in text
        # As `/metrics?name[]=...` asks for it.
        asked = f"{name}_count" if metric.kind is MetricKind.DURATION else name
        assert list(metrics.registry.restricted_registry([asked]).collect()), f"{asked} alone"
    assert "_created" not in text


@pytest.mark.parametrize(
    "report",
    [
        lambda r: r.count("nobody_declared_this"),
        lambda r: r.gauge("transactions_begun", 1),
        lambda r: r.count("transactions_aborted"),
        lambda r: r.count("transactions_begun", topic="t"),
        lambda r: r.count("records_in"),
    ],
    ids=["unknown", "other kind", "label missing", "label too many", "of another role"],
)
def test_an_undeclared_metric_is_an_error_that_says_where_to_declare_it(report: Any) -> None:
    _, reporter = reporter_of("coordinator")
    with pytest.raises(UndeclaredMetric, match=r"catalogue\.py"):
        report(reporter)


def test_durations_are_given_in_milliseconds_and_exposed_in_seconds() -> None:
    metrics, reporter = reporter_of("coordinator")
    reporter.observe("commit_prepare", 1_500)
    text = generate_latest(metrics.registry).decode()
    assert "oncelog_coordinator_commit_prepare_seconds_sum 1.5" in text


def test_a_duration_lies_in_every_bucket_that_is_not_below_it() -> None:
    metrics, reporter = reporter_of("node")
    for took_ms in (0.05, 0.1, 0.3, 40_000):
        reporter.observe("rpc", took_ms, service="Cluster", method="get_metadata")
    reporter.observe("rpc", 1, service="Cluster", method="get_config")
    told = exposed(metrics, "oncelog_node_rpc_seconds")
    labels = 'method="get_metadata",service="Cluster"'
    buckets = dict(re.findall(rf'_bucket{{le="(.*?)",{labels}}} (.*)', "\n".join(told)))
    wanted = {"0.0001": 2, "0.0002": 2, "0.0005": 3, "30.0": 3, "+Inf": 4}
    assert {bound: float(buckets[bound]) for bound in wanted} == wanted
    assert f"oncelog_node_rpc_seconds_count{{{labels}}} 4.0" in told
    (total,) = [line for line in told if f"_sum{{{labels}}}" in line]
    assert float(total.split()[-1]) == pytest.approx(40.00045)


def test_what_is_forgotten_is_exposed_no_more_and_may_come_again() -> None:
    metrics, reporter = reporter_of("coordinator")
    for partition in ("a/1", "a/11"):
        reporter.gauge("open_transactions", 5, partition=partition)
        reporter.gauge("epoch", 5, partition=partition)
    reporter.count("transactions_aborted", cause="a/1")
    reporter.forget("partition", "a/1")
    reporter.forget("partition", "never/0")
    text = generate_latest(metrics.registry).decode()
    assert 'partition="1"' not in text
    assert text.count('partition="11",topic="a"') == 2
    assert 'cause="a/1"' in text
    assert len(reporter._known) == 3
    reporter.gauge("epoch", 6, partition="a/1")
    assert (
        'oncelog_coordinator_epoch{partition="1",topic="a"} 6.0'
        in generate_latest(metrics.registry).decode()
    )


ORDERS = b"orders..........".hex()


def test_a_topic_is_shown_by_its_name() -> None:
    metrics, reporter = reporter_of("partition_leader")
    reporter.gauge("epoch", 1, partition=f"{ORDERS}/0")
    metrics.name_topics({bytes.fromhex(ORDERS): "orders"}.get)
    reporter.gauge("epoch", 2, partition=f"{ORDERS}/1")
    reporter.gauge("epoch", 3, partition="__transaction_control/7")
    reporter.gauge("epoch", 4, partition=f"{'f' * 32}/2")
    shown = re.findall(r"_epoch\{(.*?)\} (\d)", generate_latest(metrics.registry).decode())
    assert sorted(shown, key=lambda one: one[1]) == [
        # Nobody could name it yet.
        (f'partition="0",topic="{ORDERS}"', "1"),
        ('partition="1",topic="orders"', "2"),
        ('partition="7",topic="__transaction_control"', "3"),
        (f'partition="2",topic="{"f" * 32}"', "4"),
    ]


def test_a_topic_that_is_gone_does_not_take_the_next_one_of_its_name_along() -> None:
    metrics, reporter = reporter_of("partition_leader")
    again = b"again...........".hex()
    metrics.name_topics(lambda topic_id: "orders")
    reporter.gauge("epoch", 1, partition=f"{ORDERS}/0")
    reporter.gauge("epoch", 2, partition=f"{again}/0")
    reporter.forget("partition", f"{ORDERS}/0")
    reporter.gauge("epoch", 3, partition=f"{again}/0")
    text = generate_latest(metrics.registry).decode()
    assert '_epoch{partition="0",topic="orders"} 3.0' in text
    reporter.forget("partition", f"{again}/0")
    assert "_epoch{" not in generate_latest(metrics.registry).decode()


def test_a_set_of_series_is_replaced_as_a_whole() -> None:
    metrics, reporter = reporter_of("offset_manager")
    metrics.name_topics({bytes.fromhex(ORDERS): "orders"}.get)

    def lags() -> list[tuple[str, str]]:
        text = generate_latest(metrics.registry).decode()
        return sorted(re.findall(r'_group_lag\{group="(.*?)",.*\} (\d)', text))

    place = f"{ORDERS}/0"
    reporter.replace("group_lag", "a", [({"group": "g", "partition": place}, 1)])
    reporter.replace(
        "group_lag",
        "b",
        [({"group": "h", "partition": place}, 2), ({"group": "i", "partition": place}, 3)],
    )
    assert lags() == [("g", "1"), ("h", "2"), ("i", "3")]
    reporter.replace("group_lag", "b", [({"group": "i", "partition": place}, 4)])
    assert lags() == [("g", "1"), ("i", "4")]
    reporter.replace("group_lag", "b", [])
    assert lags() == [("g", "1")]
    # One that moved to another owner stays his.
    reporter.replace("group_lag", "b", [({"group": "g", "partition": place}, 5)])
    reporter.replace("group_lag", "a", [])
    assert lags() == [("g", "5")]


def test_the_endpoint_serves_all_roles_of_the_process() -> None:
    metrics = Metrics()
    log = Log(stream=io.StringIO())
    for role in ("coordinator", "partition_leader"):
        metrics.reporter(role, log).count("elections_won")
    port = metrics.serve("127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            text = reply.read().decode()
    finally:
        metrics.close()
    assert "oncelog_coordinator_elections_won_total 1.0" in text
    assert "oncelog_partition_leader_elections_won_total 1.0" in text


def scrape(port: int, context: ssl.SSLContext | None) -> str:
    scheme = "http" if context is None else "https"
    with urllib.request.urlopen(f"{scheme}://localhost:{port}/metrics", context=context) as reply:
        return str(reply.read().decode())


def scraper(files: TlsFiles, *, certificate: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    if certificate:
        context.load_cert_chain(files.certificate, files.key)
    return context


def test_what_the_library_knows_of_the_process_is_exposed() -> None:
    metrics = Metrics()
    port = metrics.serve("localhost", 0)
    try:
        text = scrape(port, None)
    finally:
        metrics.close()
    for name in ("process_resident_memory_bytes", "process_open_fds", "python_gc_collections"):
        assert name in text


@pytest.mark.parametrize("asked", Asked)
def test_the_endpoint_may_be_behind_tls_and_ask_for_certificates(
    tmp_path: Path, asked: Asked
) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    files, alice = ours.issue("server"), ours.issue("alice")
    metrics = Metrics()
    port = metrics.serve("localhost", 0, files, asked)
    try:
        with pytest.raises(OSError):
            scrape(port, None)
        assert "process_start_time" in scrape(port, scraper(alice, certificate=True))
        if asked is Asked.NOTHING:
            assert "process_start_time" in scrape(port, scraper(alice, certificate=False))
            return
        with pytest.raises(OSError):
            scrape(port, scraper(alice, certificate=False))
        stranger = scraper(alice, certificate=False)
        mallory = theirs.issue("mallory")
        stranger.load_cert_chain(mallory.certificate, mallory.key)
        with pytest.raises(OSError):
            scrape(port, stranger)
    finally:
        metrics.close()


def test_the_endpoint_shows_a_new_certificate_and_trusts_a_new_authority(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs", "theirs")
    files = ours.issue("server")
    metrics = Metrics()
    port = metrics.serve("localhost", 0, files, Asked.CERTIFICATE)
    try:
        new = theirs.issue("server")
        for name in ("ca", "certificate", "key"):
            Path(getattr(files, name)).write_bytes(Path(getattr(new, name)).read_bytes())
        metrics.renew()
        assert "process_start_time" in scrape(port, scraper(theirs.issue("bob"), certificate=True))
        with pytest.raises(OSError):
            old = scraper(theirs.issue("bob"), certificate=False)
            pair = ours.issue("alice")
            old.load_cert_chain(pair.certificate, pair.key)
            scrape(port, old)
    finally:
        metrics.close()


def test_a_scraper_that_says_nothing_holds_up_no_other(tmp_path: Path) -> None:
    ours = Authority(tmp_path / "ours")
    metrics = Metrics()
    port = metrics.serve("localhost", 0, ours.issue("server"), Asked.CERTIFICATE)
    silent = [socket.create_connection(("localhost", port)) for _ in range(3)]
    try:
        assert "process_start_time" in scrape(port, scraper(ours.issue("a"), certificate=True))
    finally:
        for one in silent:
            one.close()
        metrics.close()


def reports_in(file: Path) -> Any:
    """(line, method, name, labels) of each report in a source file whose name is literal."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        receiver = ast.unparse(node.func.value)
        if node.func.attr in KINDS and receiver.split(".")[-1].strip("_") == "reporter":
            labels = {k.arg for k in node.keywords if k.arg not in ("value", "value_ms")}
            for name in names_in(node.args[0]) if None not in labels else []:
                yield node.lineno, node.func.attr, name, labels


def names_in(expression: ast.expr) -> list[str]:
    if isinstance(expression, ast.IfExp):
        return [*names_in(expression.body), *names_in(expression.orelse)]
    return [str(expression.value)] if isinstance(expression, ast.Constant) else []


def declared_for(room: str) -> list[dict[str, catalogue.Metric]]:
    """What may be reported in a room of services; once for each role that runs it."""
    if room == "participant":
        roles = [catalogue.metrics_of(role) for role in PARTICIPANTS]
    elif room in catalogue.ROLES:
        roles = [catalogue.metrics_of(room)]
    else:
        roles = [(*catalogue.COMMON, *catalogue.NODE)]
    return [{metric.name: metric for metric in metrics} for metrics in roles]


def test_the_code_reports_only_what_is_declared() -> None:
    seen, wrong = 0, []
    for file in sorted(SERVICES.rglob("*.py")):
        relative = file.relative_to(SERVICES)
        for line, method, name, labels in reports_in(file):
            seen += 1
            for declared in declared_for(relative.parts[0]):
                metric = declared.get(name)
                if metric is None or (metric.kind, {*metric.labels}) != (KINDS[method], labels):
                    wrong.append(f"services/{relative}:{line} {method}({name!r}, {sorted(labels)})")
    assert seen > 0
    assert not wrong, (
        "declare in services/oncelog_server/runtime/observe/catalogue.py:\n" + "\n".join(wrong)
    )


def test_what_is_declared_is_reported() -> None:
    def sources(folder: str) -> str:
        files = sorted((SERVICES / folder).rglob("*.py"))
        return "".join(file.read_text() for file in files if file.name != "catalogue.py")

    places = {role: sources(role) for role in catalogue.ROLES if role != catalogue.PROCESS}
    places[catalogue.PROCESS] = sources("runtime")
    for role in PARTICIPANTS:
        places[role] += sources("participant")
    silent = [
        f"{role}: {metric.name}"
        for role, text in places.items()
        for metric in catalogue.ROLES[role]
        if f'"{metric.name}"' not in text
    ]
    assert not silent, f"nobody reports these; take them out of the catalogue: {silent}"
