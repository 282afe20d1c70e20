"""Pods of deploy/k8s as processes of this machine: started with the arguments and the environment
of their manifest, probed and stopped as the kubelet does it, rolled as a StatefulSet does it.

What a pod has of its own, and a process of this machine cannot have, is replaced: addresses, the
data's place, etcd's endpoints; certificates are left out. All else is the manifest's, above all the
probes and the grace period.

Left out: scheduling, volumes, network policies; tests/tidy/test_deploy.py reads those.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from oncelog_server.runtime.loopback_ports import HOST, free_ports
from tests.tidy.kustomization import Manifest, build

K8S: Final = Path(__file__).parents[2] / "deploy" / "k8s"
LOOK_EVERY_S: Final = 0.1
# Small journals, on a disk of any size.
SETTINGS: Final = {
    "ONCELOG_NODE_DISK_FREE_FLOOR_BYTES": "0",
    "ONCELOG_NODE_SEGMENT_BYTES": "1048576",
}
# What a process of this machine has none of.
LEFT_OUT: Final = ("TLS", "METRICS_LISTEN")


class Probe:
    """As the kubelet runs it: each period a new connection, with a deadline."""

    def __init__(self, spec: Mapping[str, Any], port: int) -> None:
        self._service = spec["grpc"].get("service", "")
        self._address = f"{HOST}:{port}"
        self._timeout_s = float(spec.get("timeoutSeconds", 1))
        self._period_s = float(spec.get("periodSeconds", 10))
        self._failures_max = int(spec.get("failureThreshold", 3))
        self._delay_s = float(spec.get("initialDelaySeconds", 0))
        self._next_at = 0.0
        self._failures = 0
        self.succeeded = False
        self.failed = False

    def begin(self, now: float) -> None:
        """The container was started."""
        self._next_at = now + self._delay_s
        self._failures, self.succeeded, self.failed = 0, False, False

    def look(self, now: float) -> None:
        """Asks where a period is over."""
        if now < self._next_at:
            return
        self._next_at = now + self._period_s
        if self._ask():
            self._failures, self.succeeded, self.failed = 0, True, False
            return
        self._failures += 1
        if self._failures >= self._failures_max:
            self.succeeded, self.failed = False, True

    def _ask(self) -> bool:
        request = health_pb2.HealthCheckRequest(service=self._service)
        with grpc.insecure_channel(self._address) as channel:
            try:
                reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=self._timeout_s)
            except grpc.RpcError:
                return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


class Pod:
    """One pod of a StatefulSet. `look` several times a second while it runs."""

    def __init__(self, stateful_set: Manifest, ordinal: int, folder: Path, etcd: str) -> None:
        spec = stateful_set["spec"]["template"]["spec"]
        [container] = spec["containers"]
        self.name = f"{stateful_set['metadata']['name']}-{ordinal}"
        self.port, health_port = free_ports(2)
        self.address = f"{HOST}:{self.port}"
        self.ready = Probe(container["readinessProbe"], health_port)
        self.alive = Probe(container["livenessProbe"], health_port)
        self._grace_s = float(spec["terminationGracePeriodSeconds"])
        assert "lifecycle" not in container, "teach this file the hook"
        self._arguments = list(container["args"])
        self._log = folder / f"{self.name}.log"
        self._environment = self._of_this_machine(container["env"]) | {
            "ONCELOG_CONFIG": str(K8S / "base" / "oncelog.toml"),
            "ONCELOG_NODE_DATA_DIR": str(folder / self.name),
            "ONCELOG_NODE_LISTEN": self.address,
            "ONCELOG_NODE_ADVERTISE": self.address,
            "ONCELOG_NODE_HEALTH_LISTEN": f"{HOST}:{health_port}",
            "ONCELOG_NODE_ETCD_ENDPOINTS": etcd,
            **SETTINGS,
        }
        self._process: subprocess.Popen[bytes] | None = None
        # How often it was started, and how long each stop took, in seconds.
        self.starts = 0
        self.stops_s: list[float] = []

    @staticmethod
    def _of_this_machine(entries: list[Mapping[str, Any]]) -> dict[str, str]:
        return {
            entry["name"]: entry["value"]
            for entry in entries
            if "value" in entry and not any(word in entry["name"] for word in LEFT_OUT)
        }

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "oncelog_server.cli", *self._arguments],
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.starts += 1
        now = time.monotonic()
        self.ready.begin(now)
        self.alive.begin(now)

    def look(self) -> None:
        """Probes it. A container that ends, or that its liveness probe would end, is a failure:
        nobody asked for it."""
        assert self._process is not None, "started"
        assert self._process.poll() is None, f"{self.name} ended by itself:\n{self.tail()}"
        now = time.monotonic()
        self.ready.look(now)
        self.alive.look(now)
        assert not self.alive.failed, f"{self.name} would be killed by its liveness probe"

    def delete(self) -> Iterator[None]:
        """SIGTERM, and the grace period: a step at a time until it has ended. Whoever needs more
        is killed, which is a failure."""
        assert self._process is not None, "started"
        begun = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        while self._process.poll() is None:
            assert time.monotonic() - begun < self._grace_s, f"{self.name} needs more time"
            yield
        assert self._process.returncode == 0, f"{self.name} did not end well:\n{self.tail()}"
        self.stops_s.append(time.monotonic() - begun)

    def kill(self) -> None:
        """At the end of a test, whatever state it left."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def events(self, event: str) -> list[dict[str, Any]]:
        """What its log says of such, in order."""
        lines = self._log.read_text(errors="replace").splitlines()
        said = [json.loads(line) for line in lines if line.startswith("{")]
        return [one for one in said if one["event"] == event]

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-4_000:]


class Pods:
    """All of an overlay's, on one machine, by the name of their set."""

    def __init__(self, overlay: str, folder: Path, etcd: str) -> None:
        self.sets: dict[str, list[Pod]] = {}
        for manifest in build(K8S / "overlays" / overlay):
            labels = manifest["metadata"].get("labels", {})
            is_ours = labels.get("app.kubernetes.io/name") == "oncelog"
            if manifest["kind"] == "StatefulSet" and is_ours:
                self.sets[manifest["metadata"]["name"]] = [
                    Pod(manifest, ordinal, folder, etcd)
                    for ordinal in range(manifest["spec"]["replicas"])
                ]

    def all(self) -> list[Pod]:
        return [pod for pods in self.sets.values() for pod in pods]

    def start(self) -> None:
        """`Parallel`: all at once. Returns when all are ready."""
        for pod in self.all():
            pod.start()
        self._until(lambda: all(pod.ready.succeeded for pod in self.all()))

    def roll(self) -> None:
        """As after `kubectl rollout restart` of every set: each set on its own, the highest ordinal
        first, the next when that one is ready again."""
        rolling = [self._roll(pods) for pods in self.sets.values()]
        while rolling:
            rolling = [one for one in rolling if next(one, "over") is None]
            time.sleep(LOOK_EVERY_S)

    def _roll(self, pods: list[Pod]) -> Iterator[None]:
        for pod in reversed(pods):
            yield from pod.delete()
            pod.start()
            while not pod.ready.succeeded:
                pod.look()
                yield
            for other in pods:
                other.look()

    def _until(self, done: Any, *, within_s: float = 120.0) -> None:
        end = time.monotonic() + within_s
        while not done():
            assert time.monotonic() < end, "not all became ready"
            for pod in self.all():
                pod.look()
            time.sleep(LOOK_EVERY_S)

    def stop(self) -> None:
        for pod in self.all():
            pod.kill()
