"""Certificates that are rotated, and that end, under load: nobody notices who need not."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path
from typing import Any

import pytest

from oncelog import aio
from oncelog_server.runtime.rpc import certificates
from oncelog_server.runtime.rpc.certificates import look
from oncelog_server.runtime.rpc.tls import TlsFiles
from oncelogpb import errors
from oncelogpb.v1 import cluster_pb2 as pb
from tests.access.world import SERVICE, Caller, World, refusal_of, running
from tests.unit.rpc.authority import Authority

ROUNDS = 3


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "LOOK_EVERY_MS", 20)


def serial_of(address: str) -> str:
    """Of the certificate that a process shows to whoever connects now."""
    host, _, port = address.rpartition(":")
    pem = ssl.get_server_certificate((host, int(port)))
    return str(hash(pem))


def replace(path: str, data: bytes) -> None:
    temporary = f"{path}.new"
    Path(temporary).write_bytes(data)
    os.replace(temporary, path)


async def until(happened: Any) -> None:
    while not happened():
        await asyncio.sleep(0.02)


class Load:
    """A client that commits transactions all the time; each must be visible, in order, once."""

    def __init__(self, world: World) -> None:
        self._log = world.caller("alice").log()
        self._stopping = False
        self.rounds = 0

    async def start(self) -> None:
        await self._log.admin.create_topic("t", partitions=2)
        self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        producer = await self._log.transactional_producer("p")
        while not self._stopping:
            async with producer.transaction(wait="visible") as tx:
                await tx.send("t", b"%d" % self.rounds, key=b"left")
                await tx.send("t", b"%d" % self.rounds, key=b"right")
            self.rounds += 1

    async def more(self) -> None:
        """Some more rounds go through."""
        target = self.rounds + 5
        await until(lambda: self.rounds >= target or self._task.done())

    async def stop(self) -> None:
        self._stopping = True
        await self._task

    async def finish(self, reader: Caller | None = None) -> None:
        """`reader`: who reads it all, where a new connection of this client is not let in."""
        await self.stop()
        await self._read(self._log if reader is None else reader.log())
        await self._log.close()

    async def _read(self, log: aio.Log) -> None:
        consumer = await log.consumer(["t"], start="earliest")
        found: list[int] = []
        while len(found) < 2 * self.rounds:
            batch = await consumer.poll(10.0)
            assert batch is not None, f"{len(found)} of {2 * self.rounds}"
            found += [int(record.value or b"") for record in batch]
        assert sorted(found) == sorted([*range(self.rounds)] * 2)
        await log.close()


def test_i6_pairs_are_rotated_under_load(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as world:
            await world.allow("alice create,read,write topic:t", "alice write producer:p")
            load = Load(world)
            await load.start()
            address = world.addresses["coordinator"]
            for _ in range(ROUNDS):
                before = await asyncio.to_thread(serial_of, address)
                world.authority.issue(SERVICE)
                while await asyncio.to_thread(serial_of, address) == before:
                    await asyncio.sleep(0.02)
                await load.more()
            await load.finish()

    asyncio.run(story())


def test_an_authority_is_replaced_in_three_steps(tmp_path: Path) -> None:
    """Both are trusted, then certificates of the new one are shown, then the old one is not
    trusted any more: and who still shows a certificate of the old one is not let in."""

    async def story() -> None:
        async with running(tmp_path) as world:
            await world.allow("alice create,read,write topic:t", "alice write producer:p")
            load = Load(world)
            await load.start()
            new = Authority(tmp_path / "new", "new authority")
            files = world.caller(SERVICE).files
            old_ca, new_ca = Path(files.ca).read_bytes(), Path(new.directory, "ca.pem").read_bytes()
            replace(files.ca, old_ca + new_ca)
            await load.more()
            issued = new.issue(SERVICE)
            replace(files.key, Path(issued.key).read_bytes())
            replace(files.certificate, Path(issued.certificate).read_bytes())
            carol = new.issue("carol")
            while not await is_let_in(world, carol):
                await asyncio.sleep(0.02)
            await load.more()
            # A connection that ends from now on, as any may on a busy machine, cannot be made anew.
            await load.stop()
            replace(files.ca, new_ca)
            bob = TlsFiles(str(Path(new.directory, "ca.pem")), *pair_of(world, "bob"))
            while await is_let_in(world, bob):
                await asyncio.sleep(0.02)
            assert await is_let_in(world, carol)
            await load.finish(world.caller_with("alice anew", new.issue("alice")))

    asyncio.run(story())


def pair_of(world: World, who: str) -> tuple[str, str]:
    files = world.authority.issue(who)
    return files.certificate, files.key


async def is_let_in(world: World, files: TlsFiles) -> bool:
    """On a connection of its own, to each process."""
    caller = Caller(world, files)
    try:
        refusals = [
            await refusal_of(caller.call("Cluster", "get_metadata", pb.GetMetadataRequest(), role))
            for role in world.addresses
        ]
    finally:
        await caller.close()
    assert all(not isinstance(refusal, errors.NotAllowed) for refusal in refusals)
    return refusals == [None] * len(refusals)


def test_who_shows_a_certificate_that_has_ended_is_not_let_in(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as world:
            old = world.authority.issue("late", valid_from=-9, valid_days=2)
            young = world.authority.issue("early", valid_from=2, valid_days=2)
            assert not await is_let_in(world, old)
            assert not await is_let_in(world, young)

    asyncio.run(story())


def test_processes_whose_certificate_has_ended_heal_by_a_new_one(tmp_path: Path) -> None:
    """Nobody starts them again, and they did not stop for it."""

    async def story() -> None:
        async with running(tmp_path) as world:
            alice = world.authority.issue("alice")
            assert await is_let_in(world, alice)
            files = world.caller(SERVICE).files
            seconds = 2.0
            world.authority.issue(SERVICE, valid_from=-1, valid_days=1 + seconds / 86_400)
            assert look(files).identity == SERVICE
            while await is_let_in(world, alice):
                await asyncio.sleep(0.05)
            world.authority.issue(SERVICE)
            while not await is_let_in(world, alice):
                await asyncio.sleep(0.05)

    asyncio.run(story())
