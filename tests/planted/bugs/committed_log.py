"""Bugs of the committed log and of what readers see of it."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

BUGS: Final = (
    Bug(
        "resumed-at-the-next-batch",
        "I15: stop anywhere, resume from the saved position: the sequence continues",
        (
            Edit(
                "oncelog_server.partition_leader.committed_log:CommittedLog.stretches",
                "first = self.entry_of(from_offset)",
                "first = sum(self.first_offset(n) < from_offset for n in range(len(self)))",
            ),
        ),
        {
            unit("partition_leader/test_reads", "test_i15_resume_from_any_offset"): "assert",
        },
    ),
    Bug(
        "dense-offset-from-memory",
        "I7, I13, I14: dense offsets are assigned by apply from the log, hence equal on every "
        "replica",
        (
            Edit(
                "oncelog_server.partition_leader.committed_log:CommittedLog.append_frame",
                "first = self.end_offset",
                "memory = globals().setdefault('_memory', {})\n"
                "        first = memory[journal_offset] = memory.get(journal_offset, len(memory))",
            ),
        ),
        {
            story(
                "partition_leader/i07_lost_tail_was_never_answered"
            ): "-markers commit@6/t5/p1/0*1 -> t5 applied w0 3..4",
            story("partition_leader/i13_plain_and_transactional_interleave"): "entry 2 is empty",
        },
    ),
    Bug(
        "open-transaction-holds-back-readers",
        "I8: commit order, not offset order: an open transaction holds back nobody",
        (
            Edit(
                "oncelog_server.partition_leader.reads:committed_ends",
                "log.readable_end(high_watermark)",
                "log.readable_end(min([high_watermark,"
                " *(t.first_position for t in replica.machine.pending.open.values())]))",
            ),
        ),
        {
            unit(
                "partition_leader/test_reads", "test_i08_an_open_transaction_holds_back_nobody"
            ): "assert [] == [b'plain', b't6']",
        },
    ),
    Bug(
        "committed-read-above-the-high-watermark",
        "I2, I27: nothing above the HW is served",
        (
            Edit(
                "oncelog_server.partition_leader.committed_log:CommittedLog.readable_end",
                "if high_watermark >= self._readable_from:",
                "if True:",
            ),
        ),
        {
            story("partition_leader/i02_nothing_is_read_before_the_commit_is_durable"): "-end 0",
            unit(
                "partition_leader/test_reads", "test_i27_nothing_above_the_high_watermark"
            ): "assert",
        },
    ),
    Bug(
        "transaction-shown-in-halves",
        "I3: a transaction is readable at its marker, not where its batches stand",
        (
            Edit(
                "oncelog_server.partition_leader.committed_log:CommittedLog._begins_at",
                "return self.journal[entry] if exposed_at == RUN else exposed_at",
                "return self.journal[entry]",
            ),
            Edit(
                "oncelog_server.partition_leader.committed_log:CommittedLog.check",
                'assert self._begins_at(entry) >= begun, f"entry {entry} is readable before '
                'its elder"',
                "pass",
            ),
        ),
        {
            story("partition_leader/i03_a_transaction_is_seen_whole"): "-end 0",
        },
    ),
    Bug(
        "not-durable-yet-is-out-of-range",
        "a fetch above the known HW waits; it is never out of range",
        (
            Edit(
                "oncelog_server.partition_leader.reads:_require_in_range",
                "max(ends.end, appended_end)",
                "ends.end",
            ),
        ),
        {
            unit(
                "partition_leader/test_reads",
                "test_an_offset_that_is_not_durable_yet_waits_and_is_not_out_of_range",
            ): "assert not True",
        },
    ),
    Bug(
        "offset-by-time-above-the-high-watermark",
        "I27: an offset by time is of what can be read",
        (
            Edit(
                "oncelog_server.partition_leader.committed_log:CommittedLog.since",
                "self.first_offset(entry) >= below",
                "self.first_offset(entry) > below",
            ),
        ),
        {story("partition_leader/by_time_below_the_high_watermark"): "-None"},
    ),
    Bug(
        "time-of-the-batch-not-of-the-commit",
        "an entry's time is its commit's",
        (
            Edit(
                "oncelog_server.partition_leader.reads:Reader._referenced",
                "stored.at.time_ms if is_run else stretch.time_ms",
                "stored.at.time_ms",
            ),
        ),
        {
            unit(
                "partition_leader/test_reads",
                "test_records_of_a_transaction_are_of_the_time_of_its_commit",
            ): "assert [0, 60000]"
        },
    ),
)
