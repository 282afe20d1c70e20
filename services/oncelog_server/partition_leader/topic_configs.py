"""Settings of a topic: one declared table. PURE.

What a later version will build is named here and refused, so that nobody believes it is in force.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from oncelog_server.core.numbers import is_number
from oncelog_server.core.topic_limits import (
    BATCH_BYTES_LEAST,
    BATCH_BYTES_MOST,
    CLEANUP_POLICY,
    COMPACT,
    MAX_BATCH_BYTES,
    is_compacted,
    require_config_bytes,
)
from oncelog_server.partition_leader.commands import (
    DELETE_RETENTION_MS,
    UNLIMITED,
    Materialization,
    Settings,
)
from oncelogpb.errors import InvalidArgument, OncelogError, Unsupported

MATERIALIZATION: Final = "materialization"
MATERIALIZATIONS: Final[Mapping[str, Materialization]] = {
    "reference": Materialization.REFERENCE,
    "copy": Materialization.COPY,
    "auto": Materialization.AUTO,
}
DELETE: Final = "delete"
# Each names what is done; the order says nothing.
POLICIES: Final = (DELETE, COMPACT, f"{COMPACT},{DELETE}", f"{DELETE},{COMPACT}")
DELETE_RETENTION: Final = "delete.retention.ms"
MIN_COMPACTION_LAG: Final = "min.compaction.lag.ms"
RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
# Shorter than this, records would go before anybody could have read them.
RETENTION_MS_LEAST: Final = 1_000
RETENTION_MOST: Final = (1 << 62) - 1


class TopicConfig(NamedTuple):
    """One setting."""

    default: str
    # Meaning and unit.
    meaning: str
    # Raises OncelogError for a value that it does not take.
    require: Callable[[str], None]


def _require_batch_bytes(value: str) -> None:
    if not (is_number(value) and BATCH_BYTES_LEAST <= int(value) <= BATCH_BYTES_MOST):
        raise InvalidArgument(
            f"{MAX_BATCH_BYTES}={value!r} must be a number of bytes from {BATCH_BYTES_LEAST} to "
            f"{BATCH_BYTES_MOST}",
            field=MAX_BATCH_BYTES,
        )


def _require_materialization(value: str) -> None:
    if value not in MATERIALIZATIONS:
        raise InvalidArgument(
            f"{MATERIALIZATION}={value!r} must be one of: {', '.join(sorted(MATERIALIZATIONS))}",
            field=MATERIALIZATION,
        )


def _require_policy(value: str) -> None:
    if value not in POLICIES:
        raise InvalidArgument(
            f"{CLEANUP_POLICY}={value!r} must be {DELETE}, {COMPACT}, or both with a comma: "
            f"{COMPACT},{DELETE}",
            field=CLEANUP_POLICY,
        )


def _require_time(name: str) -> Callable[[str], None]:
    def require(value: str) -> None:
        if not (is_number(value) and int(value) <= RETENTION_MOST):
            raise InvalidArgument(
                f"{name}={value!r} must be a number of milliseconds from 0 to {RETENTION_MOST}",
                field=name,
            )

    return require


def _require_retention(name: str, least: int, unit: str) -> Callable[[str], None]:
    def require(value: str) -> None:
        if value == str(UNLIMITED):
            return
        if not (is_number(value) and least <= int(value) <= RETENTION_MOST):
            raise InvalidArgument(
                f"{name}={value!r} must be {UNLIMITED} (unlimited), or a number of {unit} from "
                f"{least} to {RETENTION_MOST}",
                field=name,
            )

    return require


COMPACTION: Final[Mapping[str, TopicConfig]] = {
    CLEANUP_POLICY: TopicConfig(
        DELETE,
        "what becomes of old records: `delete` removes them by `retention.ms` and "
        "`retention.bytes`; `compact` keeps the last value of each key, whatever its age, and "
        "copies what is readable as `materialization=copy` does; `compact,delete` does both. Where "
        "it compacts, a record without a key is refused",
        _require_policy,
    ),
    DELETE_RETENTION: TopicConfig(
        str(DELETE_RETENTION_MS),
        "of a topic that is compacted: for how long at least readers find that a key was removed "
        "(a record without a value), milliseconds",
        _require_time(DELETE_RETENTION),
    ),
    MIN_COMPACTION_LAG: TopicConfig(
        "0",
        "of a topic that is compacted: what became readable less than this ago stays as it is, "
        "milliseconds",
        _require_time(MIN_COMPACTION_LAG),
    ),
}
CONFIGS: Final[Mapping[str, TopicConfig]] = {
    **COMPACTION,
    MATERIALIZATION: TopicConfig(
        "auto",
        "how the committed log holds its records: `reference` points into the journal; `copy` "
        "copies them, in its order, into files of their own, behind the back of readers and "
        "writers; `auto` copies what readers gain by: small batches that are kept for an hour",
        _require_materialization,
    ),
    MAX_BATCH_BYTES: TopicConfig(
        str(BATCH_BYTES_MOST), "largest payload of a batch, bytes", _require_batch_bytes
    ),
    RETENTION_MS: TopicConfig(
        str(UNLIMITED),
        "records are deleted so long after their commit, a sixteenth or half a minute later, "
        "milliseconds; -1: never",
        _require_retention(RETENTION_MS, RETENTION_MS_LEAST, "milliseconds"),
    ),
    RETENTION_BYTES: TopicConfig(
        str(UNLIMITED),
        "the oldest records are deleted while a partition has more payload, bytes, in steps of up "
        "to 64 KiB, of which the newest stays; -1: never",
        _require_retention(RETENTION_BYTES, 1, "bytes"),
    ),
}

# What is said of a topic beside its settings, and where.
FIELDS: Final = {
    "partitions": "a field of its own: `--partitions N`, or `partitions=N`",
    "replication_factor": "a field of its own: `replication_factor=N`",
}
# Settings that users of Kafka look for, and what there is instead.
OTHERS: Final = {
    "min.insync.replicas": "it holds for all topics, as the setting node.min_insync_replicas",
    "segment.bytes": "it holds for all topics, as the setting node.segment_bytes of each process",
    "segment.ms": "files of the log are closed by their size alone (node.segment_bytes)",
}


def require_configs(configs: Mapping[str, str]) -> None:
    """Raises InvalidArgument (unknown: names the nearest; or a bad value), Unsupported,
    LimitExceeded. An empty value asks for the default and is always taken."""
    for name, value in sorted(configs.items()):
        require_config_bytes(name, value)
        config = CONFIGS.get(name)
        if config is None:
            raise _unknown(name)
        if value:
            config.require(value)


def settings_of(version: int, configs: Mapping[str, str]) -> Settings:
    """What is told to the topic's partitions."""
    in_force = effective(configs)
    settings = Settings(version, materialization=MATERIALIZATIONS[in_force[MATERIALIZATION]])
    if DELETE in in_force[CLEANUP_POLICY].split(","):
        settings = msgspec.structs.replace(
            settings,
            retention_ms=int(in_force[RETENTION_MS]),
            retention_bytes=int(in_force[RETENTION_BYTES]),
        )
    if is_compacted(configs):
        settings = msgspec.structs.replace(
            settings,
            is_compacted=True,
            delete_retention_ms=int(in_force[DELETE_RETENTION]),
            min_compaction_lag_ms=int(in_force[MIN_COMPACTION_LAG]),
        )
    return settings


def effective(configs: Mapping[str, str]) -> dict[str, str]:
    """Every setting with its value in force."""
    return {name: configs.get(name) or config.default for name, config in CONFIGS.items()}


def _unknown(name: str) -> OncelogError:
    if name in OTHERS:
        return Unsupported(f"{name!r} is no setting of a topic here; leave it out: {OTHERS[name]}")
    if name in FIELDS:
        raise InvalidArgument(
            f"{name!r} is no setting of a topic but {FIELDS[name]}", field=name, nearest=name
        )
    nearest = difflib.get_close_matches(name, sorted(CONFIGS), n=1, cutoff=0.0)[0]
    return InvalidArgument(
        f"no topic setting {name!r}; did you mean {nearest!r}? There are: "
        f"{', '.join(sorted(CONFIGS))}",
        field=name,
        nearest=nearest,
    )
