"""Programs of other languages' toolchains, each fetched once per pinned version.

    <cache>/oncelog/tools/<name>-<version>/     $XDG_CACHE_HOME, else ~/.cache; nothing in the tree

They come from the registries' ordinary clients: npm packages by `npm`, Go programs by `go install`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

BUF_VERSION: Final = "1.75.0"
# A first fetch downloads; a Go program is compiled, too.
FETCH_TIMEOUT_S: Final = 600


class CannotFetch(Exception):
    """Its toolchain is not on PATH, or it is not cached here and could not be downloaded."""


def cache() -> Path:
    """Where everything that tests fetch and build is kept."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "oncelog"


def buf() -> Path:
    """The compiler and linter of protos, on PATH or of our own version: as an npm package, else
    built by Go. Raises CannotFetch."""
    on_path = shutil.which("buf")
    if on_path is not None:
        return Path(on_path)
    try:
        return npm_program("@bufbuild/buf", BUF_VERSION, "buf")
    except CannotFetch as by_npm:
        try:
            return go_program("github.com/bufbuild/buf/cmd/buf", f"v{BUF_VERSION}")
        except CannotFetch as by_go:
            raise CannotFetch(f"{by_npm}; {by_go}") from None


def npm_program(package: str, version: str, name: str) -> Path:
    """The program `name` of an npm package. Raises CannotFetch."""
    folder = _tools() / f"{name}-{version}"
    program = folder / "node_modules" / ".bin" / name
    if not program.exists():
        require("npm")
        work = emptied(folder)
        # Its scripts are not run: what is wanted lies in the package.
        quietly = ["--ignore-scripts", "--no-save", "--no-audit", "--no-fund", "--fetch-retries=1"]
        fetch(["npm", "install", *quietly, f"--prefix={work}", f"{package}@{version}"], work)
        work.rename(folder)
    return program


def go_program(package: str, version: str) -> Path:
    """The program that `go install` makes of a package. Raises CannotFetch."""
    name = package.rsplit("/", 1)[-1]
    folder = _tools() / f"{name}-{version}"
    if not (folder / name).exists():
        require("go")
        work = emptied(folder)
        fetch(["go", "install", f"{package}@{version}"], work, {"GOBIN": str(work), "GOFLAGS": ""})
        work.rename(folder)
    return folder / name


def require(program: str) -> None:
    """Raises CannotFetch where it is not on PATH."""
    if shutil.which(program) is None:
        raise CannotFetch(f"no `{program}` on PATH")


def fetch(command: Sequence[str], folder: Path, more: Mapping[str, str] | None = None) -> None:
    """Runs what needs the network, `more` being its environment beside ours. Raises CannotFetch."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(more or {})},
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise CannotFetch(f"{' '.join(command[:4])}: {done.stdout}{done.stderr}")


def _tools() -> Path:
    return cache() / "tools"


def emptied(folder: Path) -> Path:
    """Beside it, so that what was begun and not ended is never taken for it."""
    work = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    return work
