"""What must hold once all is healed and nobody writes any more.

* The history is clean, by the checker: no loss, no duplicate, order, exactly once.
* `target` is `source`, record by record, and each partition of `beats` has every pulse.
* Whoever leads shows the same committed logs, with the same offsets, without gaps: machines are
  killed in turn, so that every partition is read from more than one of them.
* Two replicas' journals are byte-equal as far as both reach.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from oncelog.checker.recorder import RecordedLog
from oncelog_server.core.roles import ROLES
from tests.chaos.machines import Machine
from tests.chaos.workload import BEATS, COPY_OF, PARTITIONS, PULSE, SOURCE, TARGET, TOPICS

# (topic, partition) -> values, by offset.
Logs = dict[tuple[str, int], list[str]]

_HEADER_BYTES: Final = 96
_MAGIC: Final = b"ONCE"
# Below, nothing was compared.
_COMPARED_BYTES_MIN: Final = 1 << 20


async def committed_logs(log: RecordedLog) -> Logs:
    """All that can be read now. Offsets have no gaps (I14)."""
    found: Logs = {(topic, n): [] for topic, count in TOPICS.items() for n in range(count)}
    for record in await log.read_everything(list(TOPICS)):
        place = found[record.topic, record.partition]
        assert record.offset == len(place), f"{record.topic}/{record.partition} has a gap"
        place.append((record.value or b"").decode())
    return found


def require_copied(logs: Logs) -> None:
    """Of every record one copy, in its order."""
    for number in range(PARTITIONS):
        copies = [value.partition(COPY_OF)[0] for value in logs[TARGET, number]]
        assert copies == logs[SOURCE, number], f"{TARGET}/{number} is not {SOURCE}/{number}"
    pulses = {place[1]: values for place, values in logs.items() if place[0] == PULSE}
    for number in range(PARTITIONS):
        beats = [value.partition(COPY_OF)[0] for value in logs[BEATS, number]]
        assert len(beats) == len(set(beats)), f"{BEATS}/{number} has a pulse twice"
        for which, sent in pulses.items():
            of_this = set(sent)
            seen = [value for value in beats if value in of_this]
            assert seen == sent[: len(seen)], f"pulses of {which} in {BEATS}/{number}"


def require_clean(history: Path) -> str:
    """What the checker says of it."""
    check = [sys.executable, "-m", "oncelog_server.cli", "check", str(history)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def require_byte_equal(machines: Sequence[Machine]) -> int:
    """Bytes that were compared. None of the machines runs."""
    compared = 0
    for role in ROLES:
        folders = {
            path.name
            for machine in machines
            for path in (machine.data_of(role) / "partitions").iterdir()
        }
        for name in sorted(folders):
            journals = [
                journal(machine.data_of(role) / "partitions" / name) for machine in machines
            ]
            common = min(len(each) for each in journals)
            for machine, each in zip(machines, journals, strict=True):
                if each[:common] != journals[0][:common]:
                    raise AssertionError(
                        f"{role} {name}: machine {machine.number} and machine "
                        f"{machines[0].number} differ below byte {common}"
                    )
            compared += common * (len(machines) - 1)
    assert compared >= _COMPARED_BYTES_MIN, f"only {compared} bytes were compared"
    return compared


def journal(folder: Path) -> bytes:
    """Its frames, without what the files keep free behind them."""
    found = bytearray()
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        at = 0
        while data[at : at + len(_MAGIC)] == _MAGIC:
            length = int.from_bytes(data[at + 16 : at + 20], "little")
            at += _HEADER_BYTES + length
        found += data[:at]
    return bytes(found)
