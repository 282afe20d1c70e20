"""Builds the Go program of this folder, once per version of its sources and of the protos.

    protos ──protoc, protoc-gen-go──► stubs ──go build──► <cache>/oncelog/interop-<hash>/interop

The modules come from the Go module proxy, pinned by go.mod and go.sum. Everything that is made lies
in the user's cache ($XDG_CACHE_HOME, else ~/.cache), nothing in the tree.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PROTOS: Final = ROOT / "protos"
SOURCES: Final = Path(__file__).parent / "go"
MODULE: Final = "oncelog.example/interop"
STUBS: Final = f"{MODULE}/oncelogpb"
# Generators of the stubs; they must suit the versions in go.mod.
GENERATORS: Final = {
    "protoc-gen-go": "google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.6",
    "protoc-gen-go-grpc": "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.5.1",
}
# A first build downloads modules and compiles gRPC.
BUILD_TIMEOUT_S: Final = 600


class CannotFetch(Exception):
    """A module is not cached here and could not be downloaded."""


def built() -> Path:
    """The program. Raises CannotFetch; a build that fails for another reason fails the test."""
    folder = _cache() / f"interop-{_version()}"
    program = folder / "interop"
    if not program.exists():
        work = folder.with_suffix(".making")
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(SOURCES, work)
        _fetch(work)
        _make_stubs(work)
        _run(["go", "build", "-o", "interop", "."], work)
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)
    return program


def _fetch(work: Path) -> None:
    """Everything that needs the network."""
    try:
        for package in GENERATORS.values():
            _run(["go", "install", package], work)
        _run(["go", "mod", "download"], work)
    except AssertionError as error:
        raise CannotFetch(str(error)) from None


def _make_stubs(work: Path) -> None:
    files = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("oncelogpb/v1/*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}"]
    command.append(f"-I{sysconfig.get_path('purelib')}")
    for generator in GENERATORS:
        language = generator.removeprefix("protoc-gen-")
        command += [f"--plugin={generator}={_bin() / generator}", f"--{language}_out={work}"]
        command += [f"--{language}_opt=module={MODULE}"]
        command += [f"--{language}_opt=M{file}={STUBS}" for file in files]
    _run([*command, *files], work)


def _run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "GOBIN": str(_bin()), "GOFLAGS": "-mod=mod"}
    if command[1] == "build":
        environment["GOFLAGS"] = "-mod=readonly"
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command[:4])}: {done.stdout}{done.stderr}"


def _version() -> str:
    digest = hashlib.sha256(repr(GENERATORS).encode())
    for path in sorted([*SOURCES.iterdir(), *PROTOS.glob("oncelogpb/v1/*.proto")]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "oncelog"


def _bin() -> Path:
    versions = hashlib.sha256(repr(GENERATORS).encode()).hexdigest()[:16]
    return _cache() / f"interop-generators-{versions}"
