"""What people call a service with by hand: buf, and grpcurl where it is on PATH, by reflection
alone."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest

import oncelog.testing
from tests.interop import toolchain

CALL_TIMEOUT_S = 60
LISTED = {
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "oncelogpb.v1.Cluster",
    "oncelogpb.v1.Coordinator",
    "oncelogpb.v1.Replication",
}


@pytest.fixture(scope="module")
def coordinator() -> Iterator[str]:
    """Its address."""
    with oncelog.testing.cluster() as cluster:
        yield cluster.bootstrap.split(",")[0]


@pytest.mark.parametrize("protocol", ["grpc-v1", "grpc-v1alpha"])
def test_buf_lists_and_calls_by_reflection(coordinator: str, protocol: str) -> None:
    try:
        buf = toolchain.buf()
    except toolchain.CannotFetch as error:
        pytest.skip(f"NOT TESTED: buf cannot be had: {error}")
    curl = [str(buf), "curl", "--protocol=grpc", "--http2-prior-knowledge"]
    curl += [f"--reflect-protocol={protocol}"]
    address = f"http://{coordinator}"

    listed = _run([*curl, "--list-services", address])
    assert set(listed.stdout.split()) == LISTED, listed.stderr

    called = _run([*curl, "-d", "{}", f"{address}/oncelogpb.v1.Cluster/GetMetadata"])
    roles = {role for node in json.loads(called.stdout)["nodes"] for role in node["roles"]}
    assert roles == {"coordinator", "partition_leader", "offset_manager"}

    request = json.dumps({"topics": ["t"] * 10_001})
    refused = _run([*curl, "-d", "@-", f"{address}/oncelogpb.v1.Cluster/GetMetadata"], request)
    told = json.loads(refused.stderr)
    assert told["code"] == "invalid_argument"
    assert [detail["type"] for detail in told["details"]] == ["google.rpc.ErrorInfo"]


def test_grpcurl_lists_describes_and_shows_reasons(coordinator: str) -> None:
    grpcurl = shutil.which("grpcurl")
    if grpcurl is None:
        pytest.skip("NOT TESTED: no grpcurl on PATH (building it takes minutes); buf was tried")
    call = [grpcurl, "-plaintext"]
    assert set(_run([*call, coordinator, "list"]).stdout.split()) == LISTED
    for service in sorted(LISTED):
        described = _run([*call, coordinator, "describe", service])
        assert f"{service} is a service" in described.stdout, described.stderr
    body = ["-d", '{"transactionGroups": ["g"], "journalPartitions": [99]}']
    refused = _run([*call, *body, coordinator, "oncelogpb.v1.Cluster/GetMetadata"])
    assert '"reason": "UNKNOWN_PARTITION"' in refused.stderr


def _run(command: list[str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=CALL_TIMEOUT_S,
    )
