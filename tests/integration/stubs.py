"""What a program in another language has: a channel and the stubs made from the protos, nothing of
our client. No retries, no redirects: one call, one answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from oncelogpb import errors
from oncelogpb.v1 import (
    cluster_pb2_grpc,
    coordinator_pb2_grpc,
    offset_manager_pb2_grpc,
    partition_leader_pb2,
    partition_leader_pb2_grpc,
)
from oncelogpb.v1 import types_pb2 as pb
from tests.integration.by_hand import rows_batch
from tests.integration.cluster import COORDINATOR, OFFSET_MANAGER, PARTITION_LEADER, Cluster

# Where gRPC puts the google.rpc.Status with its details.
DETAILS = "grpc-status-details-bin"
# Of plain producers the top bit is set.
PLAIN = pb.Producer(producer_id=1 << 63 | 7)
# A bound that only ends a test that would hang.
TIMEOUT_S = 30.0


class Stubs:
    """Unary calls to the three services, each at its process."""

    def __init__(self, cluster: Cluster) -> None:
        self.channels = {
            role: grpc.insecure_channel(cluster.address(role))
            for role in (COORDINATOR, PARTITION_LEADER, OFFSET_MANAGER)
        }
        self.coordinator = coordinator_pb2_grpc.CoordinatorStub(self.channels[COORDINATOR])
        self.leader = partition_leader_pb2_grpc.PartitionLeaderStub(self.channels[PARTITION_LEADER])
        self.offsets = offset_manager_pb2_grpc.OffsetManagerStub(self.channels[OFFSET_MANAGER])
        self.cluster = {
            role: cluster_pb2_grpc.ClusterStub(channel) for role, channel in self.channels.items()
        }

    def close(self) -> None:
        for channel in self.channels.values():
            channel.close()

    def __enter__(self) -> Stubs:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def produce(stubs: Stubs, partition: pb.Partition, value: bytes = b"plain") -> str:
    """Appends a plain record, the first of a producer of its own. Reason of the refusal; "" where
    it is acknowledged, also as a repeat."""
    request = partition_leader_pb2.ProduceRequest(
        producer=PLAIN, batches=[rows_batch(partition, value)]
    )
    (result,) = stubs.leader.Produce(request, timeout=TIMEOUT_S, wait_for_ready=True).results
    return errors.from_status(result.error).reason if result.HasField("error") else ""


def refusal(call: Callable[..., Any], request: object) -> error_details_pb2.ErrorInfo:
    """Why the call is refused. It must be."""
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=TIMEOUT_S)
    return info_of(caught.value)


def info_of(error: Any) -> error_details_pb2.ErrorInfo:
    """The ErrorInfo of a failed call; an empty one where the status is not ours."""
    status, info = status_pb2.Status(), error_details_pb2.ErrorInfo()
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS:
            status.ParseFromString(value)
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
    assert not status.details or status.code == error.code().value[0]
    return info
