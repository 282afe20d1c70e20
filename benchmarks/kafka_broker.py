"""Kafka brokers of this machine's own, to measure beside: KRaft, loopback, Kafka's defaults (no
fsync). Its jars come once from Maven Central (benchmarks/pom.xml) into a cache."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

VERSION: Final = "4.3.1"
POM: Final = Path(__file__).with_name("pom.xml")
# Any UUID in Kafka's spelling.
CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qk"
# The heap is that of kafka-server-start.sh.
JVM: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
DOWNLOAD_SECONDS_MAX: Final = 600
START_SECONDS_MAX: Final = 300
STOP_SECONDS_MAX: Final = 20
# What a node needs, and nothing else: every other setting is Kafka's default.
CONFIG: Final = """\
process.roles=broker,controller
node.id={node}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters={voters}
log.dirs={folder}/data
offsets.topic.replication.factor={count}
transaction.state.log.replication.factor={count}
transaction.state.log.min.isr={min_insync}
"""


class NoKafka(RuntimeError):
    """Kafka cannot be had here; the message says what is missing."""


@contextmanager
def kafka_brokers(folder: Path, count: int, *, settings: Sequence[str] = ()) -> Iterator[str]:
    """Runs so many brokers over `folder` and gives their bootstrap addresses; stops them at the
    end. `settings` are name=value, beside what a node needs. Raises NoKafka."""
    with running_brokers(folder, count, settings=settings) as brokers:
        yield brokers.bootstrap


@contextmanager
def running_brokers(folder: Path, count: int, *, settings: Sequence[str] = ()) -> Iterator[Brokers]:
    """The same, to be killed and started again. Raises NoKafka."""
    jars = _jars()
    ports, controllers = _free_ports(count), _free_ports(count)
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(controllers, 1))
    brokers = []
    for node, (port, controller_port) in enumerate(zip(ports, controllers, strict=True), 1):
        config = CONFIG.format(
            node=node,
            port=port,
            controller_port=controller_port,
            voters=voters,
            folder=folder / str(node),
            count=count,
            min_insync=min(count, 2),
        )
        text = "\n".join([config, *settings])
        brokers.append(Broker(jars, folder / str(node), port, text))
    with ExitStack() as stack:
        for broker in brokers:
            stack.callback(broker.stop)
            broker.start()
        for broker in brokers:
            broker.wait_ready()
        yield Brokers(brokers)


class Brokers:
    """All of one cluster, in the order of their nodes."""

    def __init__(self, brokers: Sequence[Broker]) -> None:
        self.brokers = brokers
        self.bootstrap = ",".join(f"127.0.0.1:{broker.port}" for broker in brokers)

    @property
    def pids(self) -> dict[str, int]:
        return {f"broker {node}": broker.pid for node, broker in enumerate(self.brokers, 1)}


class Broker:
    """One node: a process over a folder that outlives it."""

    def __init__(self, jars: Path, folder: Path, port: int, settings: str) -> None:
        self._folder = folder
        self.port = port
        folder.mkdir(parents=True)
        config = folder / "server.properties"
        config.write_text(settings)
        java = ("java", *JVM, "-cp", f"{jars}/*")
        self._command = (*java, "kafka.Kafka", str(config))
        storage = ("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config))
        with self._log_path.open("wb") as log:
            subprocess.run((*java, *storage), stdout=log, stderr=log, check=True)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def _log_path(self) -> Path:
        return self._folder / "broker.log"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    def start(self) -> None:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                # Ctrl-C is for whoever measures, who stops it after what uses it.
                start_new_session=True,
            )

    def kill(self) -> None:
        """As a machine that loses its power ends it."""
        assert self._process is not None, "it was started"
        self._process.kill()
        self._process.wait()

    def wait_ready(self) -> None:
        """Until it accepts connections. Raises NoKafka."""
        assert self._process is not None, "it was started"
        _wait_for(self.port, self._process, self._log_path)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _jars() -> Path:
    """The folder of the broker's jars, downloaded where there is none."""
    if shutil.which("java") is None:
        raise NoKafka("Kafka needs Java 17 or newer on PATH")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jars = cache / "oncelog" / f"kafka-{VERSION}"
    if jars.exists():
        return jars
    if shutil.which("mvn") is None:
        raise NoKafka(f"there is no Maven to download Kafka with, and no {jars}")
    partial = jars.with_name(f"{jars.name}.{os.getpid()}")
    command = ("mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies")
    try:
        subprocess.run(
            (*command, f"-DoutputDirectory={partial}"), check=True, timeout=DOWNLOAD_SECONDS_MAX
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise NoKafka(f"Maven could not download Kafka {VERSION}: {error}") from None
    partial.rename(jars)
    return jars


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def _wait_for(port: int, broker: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < give_up:
        if broker.poll() is not None:
            raise NoKafka(f"the broker ended with {broker.returncode}:\n{log.read_text()[-2000:]}")
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise NoKafka(f"the broker is not ready after {START_SECONDS_MAX} s")
