"""Waiting for a group's commit, on real processes: an offset manager that stands still has not
heard of it, whatever its coordinator has decided."""

from __future__ import annotations

import os

import pytest

import oncelog
from oncelog import errors
from oncelog._core.routing import PartitionKey
from oncelog._core.transaction import manifest_of
from oncelog.protocol import Protocol
from oncelogpb.v1 import coordinator_pb2, offset_manager_pb2, types_pb2
from tests.integration.cluster import OFFSET_MANAGER, Cluster

pytestmark = pytest.mark.integration
GROUP = "waited-for"


def test_i22_a_commit_whose_marker_is_on_its_way_is_not_told_yet(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    with log.producer() as producer:
        for _ in range(5):
            producer.send(topic, b"v", partition=0)
    with Protocol(cluster.bootstrap) as protocol:
        tx_id, commit = _prepared(protocol, topic)
        with pytest.raises(errors.PendingTransaction, match="open"):
            log.admin.wait_for_commit(GROUP, tx_id, timeout_s=0.5)
        with cluster.paused(OFFSET_MANAGER):
            protocol.call("coordinator.commit_transaction", commit)
            assert log.admin.describe_transaction(tx_id).state == "committed"
            with pytest.raises(errors.PendingTransaction, match="marker"):
                log.admin.wait_for_commit(GROUP, tx_id, timeout_s=1.0)
    log.admin.wait_for_commit(GROUP, tx_id)
    first, _ = log.admin.group_offsets(GROUP)
    assert (first.offset, first.pending_tx_id) == (5, 0)


def _prepared(
    protocol: Protocol, topic: str
) -> tuple[int, coordinator_pb2.CommitTransactionRequest]:
    """A transaction whose offsets are pending, and the request that commits it."""
    name = os.urandom(4).hex()
    init = coordinator_pb2.InitProducerRequest(group=name, name=name, instance_id=os.urandom(16))
    producer = protocol.call("coordinator.init_producer", init).producer
    begin = coordinator_pb2.BeginTransactionRequest(producer=producer, request_id=1)
    tx_id: int = protocol.call("coordinator.begin_transaction", begin).tx_id
    offset = offset_manager_pb2.OffsetCommit(
        partition=PartitionKey(protocol.topic(topic).topic_id, 0).wire(),
        from_none=True,
        to_offset=5,
        view=types_pb2.VIEW_COMMITTED,
    )
    pending = offset_manager_pb2.CommitTransactionOffsetsRequest(
        tx_id=tx_id,
        producer=producer,
        offsets=offset_manager_pb2.GroupOffsets(group=GROUP, offsets=[offset]),
    )
    told = protocol.call("offset_manager.commit_transaction_offsets", pending)
    participant = PartitionKey.of(told.participant)
    return tx_id, coordinator_pb2.CommitTransactionRequest(
        tx_id=tx_id, producer=producer, manifest=manifest_of([], {participant})
    )
