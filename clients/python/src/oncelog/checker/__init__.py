"""Checks a history of what clients asked and were told against Oncelog's promises I1 to I24
and I32.

    report = oncelog.checker.check_files(["history.jsonl"])      # or: check(writer.events)
    assert report.clean, report

A history is JSON lines; docs/history_format.md says which. `oncelog check history.jsonl` is the
same for a shell. `oncelog.checker.recorder.RecordedLog` wraps `oncelog.aio.Log` and writes a
history of your workload:

    history = HistoryWriter("history.jsonl", client="worker-1")   # one per process
    log = RecordedLog(aio_log, history)
    producer = await log.transactional_producer("enricher")       # as oncelog.aio has it
    async with producer.transaction(consumer) as tx:
        await tx.send("out", history.fresh("v").encode())         # the value is the record's id
    history.mark("restart", role="coordinator")                   # any remark
    await producer.close()
    await log.settle()                                            # nothing open, nothing on its way
    await log.read_everything(["in", "out"])                      # shows what is missing

Files of several processes of one machine are checked together: times are of its monotonic clock.

A clean report says that nothing in the history contradicts the promises. What a history does not
show (a record that nobody read again) cannot be checked; `settle` and `read_everything` at the end
make losses visible. Not checked here: what no client can see (I25 on, but
for what is deleted, I32).
"""

from __future__ import annotations

from oncelog.checker.check import check, check_files
from oncelog.checker.events import HistoryWriter
from oncelog.checker.history import HistoryError
from oncelog.checker.report import Report, Violation
from oncelog.checker.rules import RULES

__all__ = [
    "RULES",
    "HistoryError",
    "HistoryWriter",
    "Report",
    "Violation",
    "check",
    "check_files",
]
