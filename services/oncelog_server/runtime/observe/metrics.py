"""Reporters that feed Prometheus, and the endpoint that it reads.

One registry per process, one reporter per role. A name, label or kind that `catalogue` does not
declare is a programmer's error (UndeclaredMetric): what is not in the docs is not measured.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)

from oncelog_server.runtime.observe.catalogue import PARTITION, Metric, MetricKind, metrics_of
from oncelog_server.runtime.observe.durations import Durations
from oncelog_server.runtime.observe.levels import Levels
from oncelog_server.runtime.observe.logs import Log
from oncelog_server.runtime.rpc.tls import Asked, TlsFiles

# How long a scraper may be silent in the middle of its request, or of its handshake.
SCRAPER_SECONDS_MAX: Final = 30

# A topic's name by its id; None where it is not known.
TopicName = Callable[[bytes], str | None]
# What a report says: kind, name, labels as given.
Key = tuple[object, ...]
# Of such a key. An enum's member is hashed by a function in Python, at each report.
_COUNTER: Final = MetricKind.COUNTER.name
_GAUGE: Final = MetricKind.GAUGE.name
_DURATION: Final = MetricKind.DURATION.name
# A metric's name, and the values of its labels.
Series = tuple[str, ...]


class UndeclaredMetric(Exception):
    """A metric that the catalogue does not know in that form."""


class Metrics:
    """The registry of a process."""

    def __init__(self) -> None:
        # A second series per counter and histogram, with its birth time: not in the catalogue.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        # process_*, python_gc_* and python_info: what prometheus_client knows of every process.
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self._topic_name: TopicName = lambda topic_id: None
        self._reporters: dict[str, PrometheusReporter] = {}
        self._endpoint: Any = None
        self._thread: threading.Thread | None = None
        self._files: TlsFiles | None = None
        self._asked = Asked.NOTHING
        # What a connection that begins now is shown.
        self._context: ssl.SSLContext | None = None

    def reporter(self, role: str, log: Log) -> PrometheusReporter:
        """The Reporter of one role, the same one each time."""
        if role not in self._reporters:
            self._reporters[role] = PrometheusReporter(
                self.registry, role, log, lambda topic_id: self._topic_name(topic_id)
            )
        return self._reporters[role]

    def name_topics(self, topic_name: TopicName) -> None:
        """From now on topics are shown by these names."""
        self._topic_name = topic_name

    def serve(
        self, host: str, port: int, files: TlsFiles | None = None, asked: Asked = Asked.NOTHING
    ) -> int:
        """Serves /metrics from a thread of its own; the port. Without `files` it is plain. Raises
        OSError."""
        is_mutual = asked is Asked.CERTIFICATE
        self._endpoint, self._thread = start_http_server(
            port,
            host,
            self.registry,
            certfile=None if files is None else files.certificate,
            keyfile=None if files is None else files.key,
            client_cafile=files.ca if files is not None and is_mutual else None,
            client_auth_required=is_mutual,
        )
        quiet = self._endpoint.RequestHandlerClass
        self._endpoint.RequestHandlerClass = type(
            "Scrape", (quiet,), {"timeout": SCRAPER_SECONDS_MAX}
        )
        if files is not None:
            self._files, self._asked = files, asked
            self._shake_hands()
        return int(self._endpoint.server_port)

    def _shake_hands(self) -> None:
        """In the thread of the request, so that one who connects and says nothing holds up nobody;
        and with the files as they are by then."""
        self.renew()
        listening: Any = self._endpoint.socket
        listening.do_handshake_on_connect = False

        def shown(connection: ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
            assert self._context is not None
            connection.context = self._context

        listening.context.sni_callback = shown

    def renew(self) -> None:
        """New connections are shown what the files hold now. Raises OSError."""
        if self._files is None:
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._files.certificate, self._files.key)
        if self._asked is Asked.CERTIFICATE:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cafile=self._files.ca)
        self._context = context

    def close(self) -> None:
        """Ends the endpoint."""
        if self._endpoint is not None and self._thread is not None:
            self._endpoint.shutdown()
            self._endpoint.server_close()
            self._thread.join()


class PrometheusReporter:
    """The Reporter port. `count` and `gauge` may be called from any thread."""

    def __init__(
        self, registry: CollectorRegistry, role: str, log: Log, topic_name: TopicName
    ) -> None:
        self._role = role
        self._log = log
        self._topic_name = topic_name
        self._metrics = {metric.name: metric for metric in metrics_of(role)}
        self._collectors = {
            name: _collector(metric, role, registry) for name, metric in self._metrics.items()
        }
        # A child's method by (kind, name, labels as given): looking a child up takes a lock.
        self._known: dict[Key, Callable[[float], None]] = {}
        # As it shows each of these: a topic that is gone has no name any more.
        self._shown: dict[Key, Series] = {}
        # Who made a series last: two partitions may show the same one, where a topic was deleted
        # and made anew.
        self._makers: dict[Series, Key] = {}
        # What `replace` showed last, by (name, whose).
        self._sets: dict[Key, set[Series]] = {}

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        key = (_COUNTER, name, *labels.items())
        known = self._known.get(key)
        (known or self._find(key, MetricKind.COUNTER, name, labels))(value)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        key = (_GAUGE, name, *labels.items())
        known = self._known.get(key)
        (known or self._find(key, MetricKind.GAUGE, name, labels))(value)

    def observe(self, name: str, value_ms: float, **labels: str) -> None:
        """A duration, into a histogram."""
        key = (_DURATION, name, *labels.items())
        known = self._known.get(key)
        (known or self._find(key, MetricKind.DURATION, name, labels))(value_ms / 1000)

    def replace(
        self, name: str, whose: str, rows: Iterable[tuple[Mapping[str, str], float]]
    ) -> None:
        """See the port."""
        maker: Key = ("set", name, whose)
        shown: set[Series] = set()
        for labels, value in rows:
            series = self._series(self._declared(MetricKind.GAUGE, name, labels), labels)
            self._collectors[name].labels(*series[1:]).set(value)
            self._makers[series] = maker
            shown.add(series)
        for gone in self._sets.get(maker, set()) - shown:
            self._remove(gone, maker)
        self._sets[maker] = shown

    def forget(self, label: str, value: str) -> None:
        """Drops every series whose only label has this value: they would stand for ever."""
        for name, metric in self._metrics.items():
            key: Key = (metric.kind.name, name, (label, value))
            if metric.labels == (label,) and self._known.pop(key, None) is not None:
                self._remove(self._shown.pop(key), key)

    def event(self, event: str, **fields: object) -> None:
        level = str(fields.pop("level", "info"))
        self._log.line(event, level=level, role=self._role, **fields)

    def _find(
        self, key: Key, kind: MetricKind, name: str, labels: dict[str, str]
    ) -> Callable[[float], None]:
        """The child's method, which is known from now on."""
        metric = self._declared(kind, name, labels)
        child = self._collectors[name]
        if labels:
            series = self._shown[key] = self._series(metric, labels)
            self._makers[series] = key
            child = child.labels(*series[1:])
        method = {
            MetricKind.COUNTER: "inc",
            MetricKind.GAUGE: "set",
            MetricKind.DURATION: "observe",
        }[kind]
        bound: Callable[[float], None] = getattr(child, method)
        self._known[key] = bound
        return bound

    def _declared(self, kind: MetricKind, name: str, labels: Mapping[str, str]) -> Metric:
        """Raises UndeclaredMetric."""
        metric = self._metrics.get(name)
        if metric is None or metric.kind is not kind or set(metric.labels) != set(labels):
            raise UndeclaredMetric(
                f"{kind} {name!r} of {self._role} with labels {sorted(labels)}: declare it in "
                "services/oncelog_server/runtime/observe/catalogue.py"
            )
        return metric

    def _series(self, metric: Metric, labels: Mapping[str, str]) -> Series:
        """Its name, and the values of its exposed labels in their order."""
        values: list[str] = []
        for label in metric.labels:
            if label == PARTITION:
                values += self._place(labels[label])
            else:
                values.append(labels[label])
        return (metric.name, *values)

    def _place(self, partition: str) -> tuple[str, str]:
        """Topic and number. A topic that nobody can name is shown by its id."""
        topic, _, number = partition.rpartition("/")
        try:
            named = self._topic_name(bytes.fromhex(topic))
        except ValueError:
            # A control topic, by its name.
            named = None
        return named or topic, number

    def _remove(self, series: Series, maker: Key) -> None:
        if self._makers.get(series) == maker:
            del self._makers[series]
            self._collectors[series[0]].remove(*series[1:])


def _collector(metric: Metric, role: str, registry: CollectorRegistry) -> Any:
    # prometheus_client puts `_total` behind a counter by itself.
    name = metric.full_name(role).removesuffix("_total")
    if metric.kind is MetricKind.COUNTER:
        return Counter(name, metric.help, metric.exposed_labels, registry=registry)
    kind = Levels if metric.kind is MetricKind.GAUGE else Durations
    collector = kind(name, metric.help, metric.exposed_labels)
    registry.register(collector)
    return collector
