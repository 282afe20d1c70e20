"""From a writer's `commit`, a process that Spark starts, to the driver's own Python: what the tasks
of one DataFrame wrote, in a file of a folder that only this user may enter.

Both run on the driver's host. The file is there whole or not at all, and absent where the job
failed. Nothing of it decides anything: the transaction does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oncelog_spark.manifest import PartCount, TaskWritten, TransactionKey


def leave(file: Path, messages: Sequence[TaskWritten]) -> None:
    """For `take`, by another process."""
    document = [_document(message) for message in messages]
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps(document))
    os.replace(unfinished, file)


def take(file: Path) -> list[TaskWritten]:
    """What was left. Raises FileNotFoundError."""
    document = json.loads(file.read_text())
    file.unlink()
    return [_message(entry) for entry in document]


def _document(message: TaskWritten) -> dict[str, Any]:
    key = message.key
    return {
        "producer": key.producer_name,
        "instance": key.instance_id.hex(),
        "scope": key.scope,
        "number": key.number,
        "group": key.group,
        "before": key.name_before,
        "tx": message.tx_id,
        "id": message.producer_id,
        "generation": message.generation,
        "writer": message.writer,
        "parts": [(part.topic_id.hex(), part.number, part.record_count) for part in message.parts],
    }


def _message(entry: dict[str, Any]) -> TaskWritten:
    key = TransactionKey(
        entry["producer"],
        bytes.fromhex(entry["instance"]),
        entry["scope"],
        entry["number"],
        entry["group"],
        entry["before"],
    )
    parts = tuple(
        PartCount(bytes.fromhex(topic_id), number, count)
        for topic_id, number, count in entry["parts"]
    )
    return TaskWritten(key, entry["tx"], entry["id"], entry["generation"], entry["writer"], parts)
