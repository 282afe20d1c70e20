"""Which cluster this node's data belongs to, and whether this etcd is its etcd
(docs/leadership.md, "Whose etcd").

The cluster record is created by the first process, by compare-and-set. Each data directory
remembers, in `etcd.json`: our cluster id, etcd's own cluster id, the highest revision it has seen,
and the boot id of the process that ran last. An etcd that does not match is refused:

    no cluster record, or another cluster id     wiped, or another cluster's
    another cluster id of etcd's own             replaced
    a revision below one seen before             restored from a backup
    another number of recoveries                 rebuilt without this directory, or restored since
    another value where one was seen written     restored, and past that revision again

An etcd that does match knows, too, whether the directory is as the node's last process left it
(`directory_mark`). An older one is not refused: its replicas count as new.

Invariant: what is remembered about revisions never goes back, except by `oncelog cluster recover`
(`runtime/recover`), which counts itself. It may lag by REMEMBER_EVERY_MS, so a backup younger than
that is not noticed here; epochs in the logs are the second line.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from oncelog_server.core.ids import CONTROL_PARTITIONS, BootId
from oncelog_server.runtime.etcd.directory_mark import DirectoryMark
from oncelog_server.runtime.etcd.keys import (
    CLUSTER,
    ClusterValue,
    DirectoryValue,
    cluster_value,
    encode,
)
from oncelog_server.runtime.etcd.lease_clock import lease_clock_ms
from oncelog_server.runtime.etcd.port import (
    Compare,
    Etcd,
    EtcdCompacted,
    EtcdUnavailable,
    KeyValue,
    Put,
)
from oncelog_server.runtime.etcd.refusal import EtcdRefused
from oncelog_server.runtime.storage.port import Disk

FILE: Final = "etcd.json"
# At most one write of the file in so long, unless an identity changes.
REMEMBER_EVERY_MS: Final = 1_000
FILE_BYTES_MAX: Final = 64 << 10

DEFAULT_LEASE_MS: Final = 5_000
DEFAULT_MIN_INSYNC_REPLICAS: Final = 2
LEASE_MS_MIN: Final = 1_000
LEASE_MS_MAX: Final = 60_000

Offload = Callable[[Callable[[], None]], Awaitable[None]]


class ClusterSettings(msgspec.Struct, frozen=True):
    """What the first process proposes; later processes get what stands."""

    # Of nodes; a partition with fewer replicas needs all of its own.
    min_insync_replicas: int = DEFAULT_MIN_INSYNC_REPLICAS
    # Below 2 s etcd holds the key for 2 s; this process stops answering earlier all the same.
    lease_ms: int = DEFAULT_LEASE_MS

    def validate(self) -> None:
        if not LEASE_MS_MIN <= self.lease_ms <= LEASE_MS_MAX:
            raise ValueError(
                f"lease_ms must be {LEASE_MS_MIN} to {LEASE_MS_MAX}, not {self.lease_ms}"
            )
        if self.min_insync_replicas < 1:
            raise ValueError("min_insync_replicas must be at least 1")


class ClusterRecord(msgspec.Struct, frozen=True):
    """What etcd says of the cluster, the same for every process."""

    cluster_id: bytes
    min_insync_replicas: int
    lease_ms: int


class Remembered(msgspec.Struct, frozen=True):
    """What `etcd.json` says. All defaults: a directory that never joined a cluster."""

    cluster_id: str = ""
    etcd_cluster_id: str = ""
    revision: int = 0
    boot_id: str = ""
    # Recoveries of the cluster that this directory took part in, or began after.
    recovery: int = 0
    # Of the cluster record, for the day when that is lost. 0: not known.
    min_insync_replicas: int = 0
    lease_ms: int = 0
    # A key that was written at this revision, and what was written: proof of etcd's history.
    witness: Witness | None = None

    @property
    def noted(self) -> DirectoryValue:
        """What etcd may be told of it."""
        return DirectoryValue(self.revision, self.recovery)


class Witness(msgspec.Struct, frozen=True):
    """See Remembered."""

    key: str
    revision: int
    value_sha256: str


# Built at import, for it is used off the loop: see `runtime/replica/record`.
_DECODER: Final = msgspec.json.Decoder(Remembered)


class ClusterIdentity:
    """One data directory's memory of its etcd."""

    def __init__(
        self,
        disk: Disk,
        etcd: Etcd,
        *,
        node_id: str,
        on_older: Callable[[], None],
        random_bytes: Callable[[int], bytes],
        offload: Offload = asyncio.to_thread,
        now_ms: Callable[[], int] = lease_clock_ms,
    ) -> None:
        """`on_older`, blocking: what `join` does where this directory is an older state of itself;
        again at the next start unless it returns. Raises ValueError, naming the file, where the
        memory cannot be read."""
        self._disk = disk
        self._etcd = etcd
        self._on_older = on_older
        self._mark = DirectoryMark(etcd, node_id)
        self._random_bytes = random_bytes
        self._offload = offload
        self._now_ms = now_ms
        self._remembered = load_remembered(disk)
        # Highest revision seen, in memory; ahead of the file.
        self._revision = self._remembered.revision
        self._witness: KeyValue | None = None
        self._fatal: Callable[[EtcdRefused], None] = _nobody_to_tell
        # Of this process; "": the file keeps that of the last one.
        self._boot_id = ""
        self._written_ms = now_ms() - REMEMBER_EVERY_MS
        self._writing: asyncio.Task[None] | None = None
        self._file = asyncio.Lock()

    @property
    def previous_boot_id(self) -> BootId | None:
        """The process that ran here last. With the directory's lock held it is surely dead."""
        boot_id = self._remembered.boot_id
        return BootId(bytes.fromhex(boot_id)) if boot_id else None

    @property
    def revision(self) -> int:
        """The highest revision seen."""
        return self._revision

    async def join(self, proposed: ClusterSettings) -> ClusterRecord:
        """Checks etcd against the memory; founds the cluster where there is neither. Raises
        EtcdRefused, EtcdUnavailable, and what `on_older` raises."""
        proposed.validate()
        known = self._remembered
        etcd_id = f"{await self._etcd.etcd_cluster_id():x}"
        if known.etcd_cluster_id and known.etcd_cluster_id != etcd_id:
            raise EtcdRefused(
                f"etcd's cluster id is {etcd_id}, this data directory belongs to etcd "
                f"{known.etcd_cluster_id}"
            )
        record, revision = await self._etcd.get(CLUSTER)
        if record is None and not known.cluster_id:
            record, revision = await self._found(proposed)
        value = self._judge(record, revision, at_least=known.revision)
        if not await has_history_of(self._etcd, known):
            raise _another_history(known.revision)
        _require_counts(value)
        if known.cluster_id and await self._mark.is_above(known.noted):
            # Before the file says more: then nothing would tell.
            await self._offload(self._on_older)
        self._revision = max(self._revision, revision)
        joined = msgspec.structs.replace(
            known,
            cluster_id=value.cluster_id,
            etcd_cluster_id=etcd_id,
            recovery=value.recovery,
            min_insync_replicas=value.min_insync_replicas,
            lease_ms=value.lease_ms,
        )
        if joined == known:
            await self._write_if_it_can()
        else:
            await self._write(joined)
        return ClusterRecord(
            cluster_id=bytes.fromhex(value.cluster_id),
            min_insync_replicas=value.min_insync_replicas,
            lease_ms=value.lease_ms,
        )

    def on_refused(self, fatal: Callable[[EtcdRefused], None]) -> None:
        """Called where etcd turns out to have another history than it had."""
        self._fatal = fatal

    async def recheck(self) -> None:
        """After the loss of a lease: etcd may have been restored meanwhile, and be past the
        revision that was seen. Raises EtcdUnavailable; EtcdRefused, which ends the process."""
        if not await has_history_of(self._etcd, self._remembered):
            error = _another_history(self._revision)
            self._fatal(error)
            raise error

    async def remember_boot(self, boot_id: BootId) -> None:
        """Call once the previous boot's key is gone (Membership.start) and before leading. Where
        the disk takes no writes now it is written later; a process that comes before that waits for
        the end of this one's lease."""
        self._boot_id = boot_id.hex()
        await self._write_if_it_can()

    async def mark(self) -> None:
        """Tells etcd what this directory has noted: all that was seen, if its disk takes writes.
        Raises EtcdUnavailable."""
        if self._writing is None and self._revision != self._remembered.revision:
            self._writing = asyncio.get_running_loop().create_task(self._write_revision())
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await self._mark.tell(self._remembered.noted)

    def observe(self, record: KeyValue | None, revision: int, *, at_least: int) -> None:
        """Judges the answer of a linearizable read of the cluster record. `at_least` is `revision`
        as it was before the read was sent. Raises EtcdRefused."""
        self._judge(record, revision, at_least=at_least)
        self.saw(revision)

    def _judge(self, record: KeyValue | None, revision: int, *, at_least: int) -> ClusterValue:
        if revision < at_least:
            raise EtcdRefused(f"etcd is at revision {revision}, this node has seen {at_least}")
        if record is None:
            raise EtcdRefused("etcd holds no cluster record under this prefix")
        value = cluster_value(record.value)
        known = self._remembered
        if known.cluster_id and value.cluster_id != known.cluster_id:
            raise EtcdRefused(
                f"etcd belongs to cluster {value.cluster_id}, this data directory to cluster "
                f"{known.cluster_id}"
            )
        if known.cluster_id and value.recovery != known.recovery:
            raise EtcdRefused(
                f"etcd is of recovery {value.recovery} of this cluster, this data directory of "
                f"recovery {known.recovery}"
            )
        return value

    def witness(self, put: KeyValue) -> None:
        """Kept with the next write of the file."""
        self._witness = put
        self._revision = max(self._revision, put.mod_revision)

    def saw(self, revision: int) -> None:
        """Remembers a revision soon, off the loop, at most once in REMEMBER_EVERY_MS."""
        self._revision = max(self._revision, revision)
        due = self._now_ms() - self._written_ms >= REMEMBER_EVERY_MS
        if self._revision == self._remembered.revision or not due or self._writing is not None:
            return
        if not self._remembered.cluster_id:
            # Not joined yet: `join` writes.
            return
        self._writing = asyncio.get_running_loop().create_task(self._write_revision())

    async def stop(self) -> None:
        """Writes what is not written yet."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        known = self._remembered
        late = self._revision != known.revision or self._boot_id not in ("", known.boot_id)
        if known.cluster_id and late:
            await self._write_revision()

    async def _found(self, proposed: ClusterSettings) -> tuple[KeyValue | None, int]:
        cluster_id = bytearray(self._random_bytes(16))
        # The version and variant bits of a random UUID (RFC 9562, 5.4).
        cluster_id[6] = cluster_id[6] & 0x0F | 0x40
        cluster_id[8] = cluster_id[8] & 0x3F | 0x80
        value = ClusterValue(
            cluster_id=cluster_id.hex(),
            transaction_partitions=CONTROL_PARTITIONS,
            offset_partitions=CONTROL_PARTITIONS,
            min_insync_replicas=proposed.min_insync_replicas,
            lease_ms=proposed.lease_ms,
        )
        await self._etcd.txn([Compare(CLUSTER, 0)], [Put(CLUSTER, encode(value))])
        # Another first process may have won: what stands counts.
        return await self._etcd.get(CLUSTER)

    async def _write_revision(self) -> None:
        """What is remembered is confirmed first: what was seen since may be of another history."""
        try:
            await self.recheck()
        except EtcdRefused:
            return
        except EtcdUnavailable:
            self._witness = None
            await self._write_if_it_can()
        else:
            await self._write_if_it_can()
        finally:
            self._writing = None

    async def _write_if_it_can(self) -> None:
        try:
            await self._write()
        except OSError:
            # A disk that takes no writes is the journals' to report; this memory only lags.
            self._written_ms = self._now_ms()

    async def _write(self, joined: Remembered | None = None) -> None:
        """One at a time: each replaces the whole file, and builds on the one before."""
        async with self._file:
            known = self._remembered if joined is None else joined
            witness = known.witness if self._witness is None else _make_witness(self._witness)
            remembered = msgspec.structs.replace(
                known,
                revision=self._revision,
                witness=witness,
                boot_id=self._boot_id or known.boot_id,
            )
            self._written_ms = self._now_ms()
            await self._offload(lambda: save_remembered(self._disk, remembered))
            self._remembered = remembered


def _nobody_to_tell(error: EtcdRefused) -> None:
    """Whoever asks hears it."""


def _another_history(revision: int) -> EtcdRefused:
    return EtcdRefused(
        f"etcd has another history than it had: this node has seen revision {revision}, and now "
        "that is another one"
    )


async def has_history_of(etcd: Etcd, known: Remembered) -> bool:
    """Whether what was seen written is still part of etcd's past. True also where etcd has
    compacted it away, and the key was written again since, or is gone. Raises EtcdUnavailable."""
    witness = known.witness
    if witness is None:
        return True
    try:
        found = await etcd.get_at(witness.key, witness.revision)
    except EtcdCompacted:
        found, _ = await etcd.get(witness.key)
        if found is None or found.mod_revision > witness.revision:
            return True
    return found is not None and _make_witness(found) == witness


def _make_witness(put: KeyValue) -> Witness:
    return Witness(put.key, put.mod_revision, hashlib.sha256(put.value).hexdigest())


def save_remembered(disk: Disk, remembered: Remembered) -> None:
    """Blocking; durable at return. Raises OSError."""
    disk.replace_file(FILE, msgspec.json.format(encode(remembered), indent=2))


def load_remembered(disk: Disk) -> Remembered:
    """Raises ValueError, naming the file, where it cannot be read."""
    if not disk.exists(FILE):
        return Remembered()
    file = disk.open(FILE)
    try:
        return _DECODER.decode(file.read(0, FILE_BYTES_MAX))
    except msgspec.DecodeError as error:
        raise ValueError(
            f"{FILE} in the data directory is damaged ({error}); it says which etcd the data "
            "belongs to. Remove it if you are sure that etcd was neither replaced nor restored, "
            "and that this directory is not from a backup; do not put an older one in its place"
        ) from error
    finally:
        file.close()


def _require_counts(value: ClusterValue) -> None:
    counts = (value.transaction_partitions, value.offset_partitions)
    if counts != (CONTROL_PARTITIONS, CONTROL_PARTITIONS):
        raise EtcdRefused(
            f"the cluster has {counts[0]} and {counts[1]} control partitions, this version knows "
            f"only {CONTROL_PARTITIONS}: use the version that made the cluster"
        )
