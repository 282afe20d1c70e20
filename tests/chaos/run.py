"""One run: start, trouble, healing, verdict."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from oncelog.aio import TopicInfo
from oncelog.checker.recorder import RecordedLog
from oncelog_server.core.roles import ROLES
from oncelogpb.errors import OncelogError
from tests.chaos.faults import Fault, every_fault, is_etcd_whole, is_whole, leads_of, most
from tests.chaos.machines import Machine, addresses
from tests.chaos.network import MACHINES, Network
from tests.chaos.verdict import (
    Logs,
    committed_logs,
    require_byte_equal,
    require_clean,
    require_copied,
)
from tests.chaos.workload import PATIENCE_S, Workload

# Between two looks at who leads and who is in sync.
LOOK_EVERY_S: Final = 0.25
# Between two faults, so that their times are not mixed.
CALM_S: Final = 1.0


class Run:
    """Its order of faults comes from `chance`; when things happen does not."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        etcd: Path,
        chance: random.Random,
        *,
        records: int,
        seconds: float,
        only: Sequence[str] | None,
    ) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        self._folder = folder
        self._network = network
        self._machines = [Machine(number, folder, network, etcd) for number in MACHINES]
        self._faults = _chosen(every_fault(self._machines, network), only)
        self._chance = chance
        self._records = records
        self._seconds = seconds
        self._begun_s = time.monotonic()

    def kill_all(self) -> None:
        for machine in self._machines:
            machine.kill()

    async def whole(self, rounds_of_reading: int) -> None:
        """Raises AssertionError where a promise was broken."""
        for machine in self._machines:
            machine.start()
        workload = Workload(
            addresses(self._machines), self._folder, records=self._records, seconds=self._seconds
        )
        try:
            log = await self._opened(workload)
            await workload.load()
            await self._in_sync(log, workload)
            self._say(f"{self._records} records are loaded")
            workload.begin()
            await self._trouble(log, workload)
            await workload.finish()
            self._say(f"all is copied; errors that clients saw: {dict(workload.told.refused)}")
            await log.settle()
            self._say("no transaction is open or on its way")
            logs = await committed_logs(log)
            self._say("all is read")
            for name, group in [(f"copier-{n}", "source") for n in range(3)]:
                await log.stable_offsets(name, [group])
            require_copied(logs)
            await self._read_from_others(log, workload, logs, rounds_of_reading)
        finally:
            await workload.close()
        self._say(require_clean(workload.history_path).strip().replace("\n", "; "))
        self.kill_all()
        compared = require_byte_equal(self._machines)
        self._say(f"journals are byte-equal: {compared >> 20} MiB were compared")

    # --------------------------------------------------------------------------------------- steps

    async def _opened(self, workload: Workload) -> RecordedLog:
        """A client, once the processes answer."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                log = await workload.open()
                topics = await log.log.admin.topics(internal=True)
                if len(topics) >= 2 and is_whole(topics):
                    return log
            except OncelogError:
                pass
            assert time.monotonic() < end, "the machines do not come up"
            await asyncio.sleep(LOOK_EVERY_S)

    async def _trouble(self, log: RecordedLog, workload: Workload) -> None:
        """Each kind once in some order, then again in another one until the time is over."""
        end = time.monotonic() + self._seconds
        await workload.until(lambda: workload.told.back_after(0.0) is not None, "commits")
        order = self._chance.sample(list(self._faults), len(self._faults))
        while order:
            kind = order.pop()
            await self._one(kind, self._faults[kind], log, workload)
            await asyncio.sleep(CALM_S)
            if not order and time.monotonic() < end:
                order = self._chance.sample(list(self._faults), len(self._faults))

    async def _one(self, kind: str, fault: Fault, log: RecordedLog, workload: Workload) -> None:
        leads = leads_of(await log.log.admin.topics(internal=True), self._machines)
        shown = {role: dict(by_machine) for role, by_machine in leads.items()}
        begun = time.monotonic()
        number = await asyncio.to_thread(fault.inject, leads)
        back = await self._back(workload, begun, kind)
        self.times[kind].append(back)
        await asyncio.sleep(max(0.0, begun + fault.lasts_s - time.monotonic()))
        healed = time.monotonic()
        await asyncio.to_thread(fault.heal, number)
        after = await self._back(workload, healed, f"healing of {kind}")
        self.times["(healed)"].append(after)
        await self._in_sync(log, workload)
        self._say(
            f"{kind} at machine {number} of {shown}, at {begun:.2f}: commits after {back:.2f} s "
            f"({workload.told.each_after(begun)}); after healing {after:.2f} s, all in sync "
            f"{time.monotonic() - healed:.2f} s"
        )

    async def _back(self, workload: Workload, since: float, what: str) -> float:
        told = workload.told
        await workload.until(lambda: told.back_after(since) is not None, f"commits after {what}")
        back = told.back_after(since)
        assert back is not None
        return back

    async def _in_sync(self, log: RecordedLog, workload: Workload) -> None:
        """Every partition has a leader and three replicas in sync, as a process tells it, and etcd
        is whole: the next fault meets nothing that is left of the last one."""
        end = time.monotonic() + PATIENCE_S
        topics: Sequence[TopicInfo] = ()
        while True:
            workload.check()
            try:
                topics = await log.log.admin.topics(internal=True)
            except OncelogError:
                topics = ()
            etcd_is_whole = await asyncio.to_thread(is_etcd_whole, self._machines)
            if etcd_is_whole and topics and is_whole(topics):
                return
            behind = [
                (topic.name, one.number, one.leader, len(one.isr))
                for topic in topics
                for one in topic.partitions
                if not is_whole([topic])
            ]
            assert time.monotonic() < end, f"not in sync again: {behind}; {etcd_is_whole=}"
            await asyncio.sleep(LOOK_EVERY_S)

    async def _read_from_others(
        self, log: RecordedLog, workload: Workload, logs: Logs, rounds: int
    ) -> None:
        """Each round the machine that leads most is gone; what others show is the same."""
        for _ in range(rounds):
            leads = leads_of(await log.log.admin.topics(internal=True), self._machines)
            number = most(leads, ROLES)
            machine = self._machines[number - 1]
            machine.kill()
            assert await committed_logs(log) == logs, f"without machine {number} it reads otherwise"
            machine.start()
            await self._in_sync(log, workload)
            self._say(f"without machine {number} the committed logs are the same")

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._begun_s:6.1f} s  {what}", flush=True)


def _chosen(faults: dict[str, Fault], only: Sequence[str] | None) -> dict[str, Fault]:
    unknown = sorted(set(only or ()) - set(faults))
    if unknown:
        raise SystemExit(f"no such fault here: {unknown}; there are {sorted(faults)}")
    return {name: fault for name, fault in faults.items() if only is None or name in only}
