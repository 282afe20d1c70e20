"""PURE: what is said of options that are not known here.

Every one of them is refused: an option that is passed over in silence is a promise that nobody
keeps, and one that asks for safety is the worst of them. Those come first. Users come from Spark's
Kafka source: its options are told what to write instead. Values are not repeated: some are secrets.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

NEAR: Final = 0.6
SECURITY: Final = re.compile(r"tls|ssl|sasl|secur|passw|secret|token|auth|kerberos|jaas|keytab")

_TLS: Final = "TLS is asked for by `oncelog.tls.ca`"
_CERTIFICATE: Final = "`oncelog.tls.certificate` and `oncelog.tls.key`, files in PEM form"
_LEAVE: Final = "leave it out: "
_CALLS: Final = _LEAVE + "calls are repeated until their deadline"
_SIZED: Final = _LEAVE + "messages are sized by themselves, about a MiB each"
_NO_MEMBER: Final = _LEAVE + "a query is no member of its `group`, and keeps members out of it"
_SERIALIZED: Final = _LEAVE + "keys and values are bytes: cast or decode the columns"

# The first line that an option begins with counts. Lower case, as all keys here.
ADVICE: Final[tuple[tuple[str, str], ...]] = (
    ("kafka.security.protocol", _TLS + "; without any `oncelog.tls` option there is none"),
    ("kafka.sasl", "there are no passwords: who a client is says its certificate, " + _CERTIFICATE),
    ("kafka.ssl.truststore", "use `oncelog.tls.ca`, a file in PEM form"),
    ("kafka.ssl.ca", "use `oncelog.tls.ca`, a file in PEM form"),
    ("kafka.ssl.keystore", "use " + _CERTIFICATE),
    ("kafka.ssl.certificate", "use `oncelog.tls.certificate`, a file in PEM form"),
    ("kafka.ssl.key", "use `oncelog.tls.key`, a file in PEM form without a password"),
    (
        "kafka.ssl.endpoint",
        _LEAVE + "names are always checked, and `oncelog.tls.server.name` says another one",
    ),
    ("kafka.ssl", _TLS + ", `oncelog.tls.certificate` and `oncelog.tls.key`"),
    ("kafka.bootstrap.servers", "use `oncelog.bootstrap.servers`"),
    ("kafka.group.id", "use `group`"),
    ("kafka.isolation.level", _LEAVE + "only committed records are read"),
    ("kafka.auto.offset.reset", "use `startingOffsets`"),
    ("kafka.enable.auto.commit", _LEAVE + "`group` shows where a query stands"),
    ("kafka.transactional.id", "use `producer`"),
    ("kafka.transaction.timeout.ms", "use `transactionTimeout`"),
    ("kafka.acks", _LEAVE + "what is acknowledged is synced"),
    ("kafka.enable.idempotence", _LEAVE + "nothing is ever written twice"),
    ("kafka.max.in.flight", _LEAVE + "nothing is ever written twice, nor out of order"),
    ("kafka.retries", _CALLS),
    ("kafka.delivery.timeout.ms", _CALLS),
    ("kafka.default.api.timeout.ms", _CALLS),
    ("kafka.request.timeout.ms", "reading, use `kafkaConsumer.pollTimeoutMs`; writing, " + _CALLS),
    ("kafka.retry", "reading, use `fetchOffset.retryIntervalMs`; writing, " + _CALLS),
    ("kafka.max.poll.records", "use `maxOffsetsPerTrigger`"),
    ("kafka.max.poll.interval.ms", _NO_MEMBER),
    ("kafka.session.timeout.ms", _NO_MEMBER),
    ("kafka.heartbeat.interval.ms", _NO_MEMBER),
    ("kafka.partition.assignment.strategy", _NO_MEMBER),
    ("kafka.group.instance.id", _NO_MEMBER),
    ("kafka.group", "use `group`"),
    ("kafka.client.id", _LEAVE + "operators know a query by its `group` and `producer`"),
    ("kafka.client.rack", _LEAVE + "leaders are read from"),
    ("kafka.fetch.max.wait.ms", "use `longPollMs`"),
    ("kafka.fetch.", _SIZED),
    ("kafka.max.partition.fetch.bytes", _SIZED),
    ("kafka.receive.buffer.bytes", _SIZED),
    ("kafka.send.buffer.bytes", _SIZED),
    ("kafka.batch.size", _SIZED),
    ("kafka.linger.ms", _SIZED),
    ("kafka.buffer.memory", _SIZED),
    ("kafka.max.request.size", _SIZED),
    ("kafka.max.block.ms", _CALLS),
    ("kafka.partitioner", "give the column `partition`; else a key's CRC-32 says which"),
    ("kafka.compression", _LEAVE + "records are not compressed on their way"),
    ("kafka.metadata.max", _LEAVE + "new partitions and topics are looked for every few seconds"),
    ("kafka.allow.auto.create.topics", "topics must exist: `oncelog topic create`"),
    ("kafka.interceptor.classes", _LEAVE + "transform the DataFrame"),
    ("kafka.key.", _SERIALIZED),
    ("kafka.value.", _SERIALIZED),
    ("kafka.", _LEAVE + "it is a setting of Kafka's own clients"),
    ("kafkaconsumer.", _CALLS + ", and `kafkaConsumer.pollTimeoutMs` says how long a task waits"),
    (
        "groupidprefix",
        _LEAVE + "a query without `group` joins none; with `group`, it has that one and no other",
    ),
    ("path", "a topic has no path: name it in `subscribe` (to read) or `topic` (to write)"),
    ("checkpointlocation", "it belongs to a stream's sink: `writeStream.option(...)`"),
    ("queryname", "it belongs to a stream's sink: `writeStream.queryName(...)`"),
)


def complaint(
    given: Iterable[str], known: Mapping[str, str], elsewhere: Mapping[str, str]
) -> str | None:
    """What to tell the user; None where every option is known. `known` and `elsewhere` go by the
    option in lower case: how it is written, and what to do with one that another place knows."""
    unknown = sorted(
        {key.lower() for key in given} - known.keys(),
        key=lambda key: (SECURITY.search(key) is None, key),
    )
    if not unknown:
        return None
    said = "; ".join(f"`{key}`: {_advice(key, known, elsewhere)}" for key in unknown)
    return f"no such option here: {said}"


def _advice(key: str, known: Mapping[str, str], elsewhere: Mapping[str, str]) -> str:
    if key in elsewhere:
        return elsewhere[key]
    for prefix, advice in ADVICE:
        if key.startswith(prefix):
            return advice
    # Cut short, or without its first words (`tls.ca`), before it is misspelt.
    near = [name for name in sorted(known) if name.startswith(key) or name.endswith(f".{key}")]
    near += difflib.get_close_matches(key, known, n=1, cutoff=NEAR)
    if near:
        return f"did you mean `{known[near[0]]}`?"
    return f"there are {', '.join(f'`{name}`' for name in sorted(known.values()))}"
