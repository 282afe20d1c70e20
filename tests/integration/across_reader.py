"""A program that writes down each transaction that it was given whole, in one transaction with its
positions. It is run by `test_transactions_across`, and killed.

    across_reader.py BOOTSTRAP GROUP DELIVERY BUFFER_DIR OUT TOPIC...
"""

from __future__ import annotations

import json
import sys

import oncelog


def main(bootstrap: str, group: str, delivery: str, buffers: str, out: str, *topics: str) -> None:
    with oncelog.connect(bootstrap, timeout_ms=60_000) as log:
        consumer = log.consumer(
            topics,
            group=group,
            delivery=delivery,
            buffer_dir=buffers,
            buffer_memory_bytes=256 * 1024,
            session_timeout_ms=6_000,
        )
        producer = log.transactional_producer()
        for transaction in consumer.transactions(across=True):
            values = [record.value or b"" for batch in transaction for record in batch]
            told = {
                "tx_id": transaction.tx_id,
                "parts": [f"{part.topic}/{part.partition}" for part in transaction.parts],
                "values": [value.split(b" ", 1)[0].decode() for value in values],
            }
            try:
                with producer.transaction(consumer) as tx:
                    tx.send(out, json.dumps(told).encode(), partition=0)
            except (oncelog.errors.GroupMoved, oncelog.errors.InDoubt):
                # It comes again, to this one or to another.
                print("again", flush=True)
            else:
                print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
