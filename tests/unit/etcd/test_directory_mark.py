"""A data directory that is an older state of itself: etcd knows that it held more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from oncelog_server.core.ids import BootId
from oncelog_server.runtime.etcd.cluster_view import ClusterView
from oncelog_server.runtime.etcd.directory_mark import MARK_EVERY_MS
from oncelog_server.runtime.etcd.identity import (
    FILE,
    ClusterIdentity,
    ClusterSettings,
    load_remembered,
    save_remembered,
)
from oncelog_server.runtime.etcd.keys import (
    CLUSTER,
    DIRECTORIES,
    DirectoryValue,
    cluster_value,
    directory_key,
    directory_value,
    encode,
)
from oncelog_server.runtime.etcd.memory import MemoryEtcd
from oncelog_server.runtime.etcd.port import Delete, EtcdUnavailable, Put
from oncelog_server.runtime.storage.disk import RealDisk
from tests.unit.etcd.test_identity import FullDisk, identity, never
from tests.unit.etcd.world import World


class Run:
    """One process of the node, over a real directory: what it has of etcd."""

    def __init__(self, world: World, directory: Path, on_older: Callable[[], None] = never) -> None:
        self.etcd = MemoryEtcd(world.server)
        self.identity: ClusterIdentity = identity(RealDisk(directory), self.etcd, on_older=on_older)
        self.view: ClusterView | None = None
        self._marking: asyncio.Task[None] | None = None

    async def start(self) -> Run:
        record = await self.identity.join(ClusterSettings())
        self.view = ClusterView(
            self.etcd, cluster_id=record.cluster_id, guard=self.identity, on_fatal=_raise
        )
        await self.view.start()
        await self.identity.remember_boot(BootId(b"b" * 16))
        # As the key of its boot does: etcd moves on before the process leads.
        await self.etcd.txn([], [Put("boot", b"b")])
        self._marking = asyncio.create_task(self._keep_marked())
        await asyncio.sleep(0.1)
        return self

    async def _keep_marked(self) -> None:
        while True:
            with contextlib.suppress(EtcdUnavailable):
                await self.identity.mark()
            await asyncio.sleep(MARK_EVERY_MS / 1000)

    async def die(self) -> None:
        """As by SIGKILL: nothing more is written."""
        if self._marking is not None:
            self._marking.cancel()
        if self.view is not None:
            await self.view.stop()
        if self.identity._writing is not None:
            self.identity._writing.cancel()


async def joined(disk: RealDisk, etcd: MemoryEtcd) -> ClusterIdentity:
    """Of a cluster that it founds."""
    own = identity(disk, etcd)
    await own.join(ClusterSettings())
    return own


def _raise(error: BaseException) -> None:
    raise error


class Older:
    """What a process does whose directory is older than it was."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE
        # What the file said each time.
        self.found: list[str] = []
        self.fails = False

    def __call__(self) -> None:
        self.found.append(self._file.read_text())
        if self.fails:
            raise OSError(5, "the disk fails")


def back_up(directory: Path) -> Path:
    backup = directory.with_name(directory.name + ".backup")
    shutil.copytree(directory, backup, dirs_exist_ok=True)
    return backup


def put_back(backup: Path, directory: Path) -> None:
    shutil.rmtree(directory)
    shutil.copytree(backup, directory)


@pytest.mark.parametrize("of_last_run", [False, True])
def test_i25_an_older_state_of_a_directory_is_found_before_it_says_anything(
    world: World, tmp_path: Path, of_last_run: bool
) -> None:
    """Also in a cluster in which nothing else happens."""
    directory = tmp_path / "data"

    async def story() -> None:
        run = await Run(world, directory).start()
        await asyncio.sleep(10)
        backup = back_up(directory)
        if of_last_run:
            await asyncio.sleep(2 * MARK_EVERY_MS / 1000)
        else:
            await run.die()
            run = await Run(world, directory).start()
        await run.die()
        put_back(backup, directory)
        before, older = (directory / FILE).read_text(), Older(directory)
        await (await Run(world, directory, older).start()).die()
        assert older.found == [before], "once, and the file said nothing newer by then"
        await (await Run(world, directory).start()).die()

    world.run(story)


def test_i25_it_is_found_again_until_its_replicas_have_new_names(
    world: World, tmp_path: Path
) -> None:
    directory = tmp_path / "data"

    async def story() -> None:
        await (await Run(world, directory).start()).die()
        backup = back_up(directory)
        await (await Run(world, directory).start()).die()
        put_back(backup, directory)
        older = Older(directory)
        older.fails = True
        for _ in range(2):
            with pytest.raises(OSError, match="the disk fails"):
                await Run(world, directory, older).start()
        older.fails = False
        await (await Run(world, directory, older).start()).die()
        assert len(older.found) == 3
        await (await Run(world, directory).start()).die()

    world.run(story)


@pytest.mark.parametrize("seed", range(20))
def test_a_directory_as_it_was_left_is_never_an_older_state(
    world: World, tmp_path: Path, seed: int
) -> None:
    """Whenever its process is killed, and whatever becomes of its writes to etcd."""
    chance, directory = random.Random(seed), tmp_path / "data"

    async def story() -> None:
        for _ in range(12):
            run = await Run(world, directory).start()
            for _ in range(chance.randrange(4)):
                if chance.random() < 0.3:
                    run.etcd.drop_next_txn_reply()
                run.etcd.unavailable = chance.random() < 0.3
                await asyncio.sleep(chance.choice([0.01, 1.0, 30.0, 61.0]))
                world.server.txn([], [Put("x", b"1")])
            run.etcd.unavailable = False
            if chance.random() < 0.3:
                await run.identity.stop()
            await run.die()

    world.run(story)


def test_what_the_disk_did_not_take_is_not_told(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        etcd, disk = MemoryEtcd(world.server), FullDisk(tmp_path)
        disk.full = False
        own = await joined(disk, etcd)
        disk.full = True
        own.saw((await etcd.txn([], [Put("x", b"1")])).revision)
        await own.mark()
        mark, _ = await etcd.get(directory_key("node"))
        assert mark is not None
        noted = json.loads((tmp_path / FILE).read_text())["revision"]
        assert directory_value(mark.value).revision == noted < own.revision
        await identity(RealDisk(tmp_path), etcd).join(ClusterSettings())

    world.run(story)


def test_an_etcd_that_was_wiped_is_told_nothing(world: World, tmp_path: Path) -> None:
    """It would be in the way of a recovery."""

    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        own = await joined(RealDisk(tmp_path), etcd)
        world.server.txn([], [Delete(CLUSTER)])
        await own.mark()
        assert not (await etcd.range(DIRECTORIES))[0]

    world.run(story)


def test_what_a_process_tells_that_slept_through_a_recovery_is_of_no_account(
    world: World, tmp_path: Path
) -> None:
    """Its directory takes part later, and revisions of the rebuilt etcd may be lower than those
    that it has seen."""

    async def story() -> None:
        etcd, disk = MemoryEtcd(world.server), RealDisk(tmp_path)
        own = await joined(disk, etcd)
        for number in range(20):
            await etcd.txn([], [Put("x", b"%d" % number)])
        own.saw(world.server.revision)
        await own.mark()
        [slept] = await marks(etcd)
        record = cluster_value((await etcd.get(CLUSTER))[0].value)  # type: ignore[union-attr]
        world.server.wipe()
        recovered = msgspec.structs.replace(record, recovery=1)
        world.server.txn([], [Put(CLUSTER, encode(recovered))])
        world.server.txn([], [Put(directory_key("node"), encode(slept))])
        took_part = msgspec.structs.replace(
            load_remembered(disk), recovery=1, revision=world.server.revision, witness=None
        )
        assert took_part.revision < slept.revision
        save_remembered(disk, took_part)
        again = identity(disk, etcd)
        await again.join(ClusterSettings())
        await again.mark()
        assert await marks(etcd) == [again._remembered.noted]

    world.run(story)


async def marks(etcd: MemoryEtcd) -> list[DirectoryValue]:
    return [directory_value(kv.value) for kv in (await etcd.range(DIRECTORIES))[0]]


def test_what_etcd_did_not_hear_is_told_again(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        own = await joined(RealDisk(tmp_path), etcd)
        etcd.unavailable = True
        with pytest.raises(EtcdUnavailable):
            await own.mark()
        etcd.unavailable = False
        await own.mark()
        assert len(await marks(etcd)) == 1

    world.run(story)
