"""Builds the examples of other languages as their READMEs say, word for word, from a copy that
holds nothing but the protos and the example.

    <cache>/oncelog/examples/<language>-<hash>/protos/...                without stubs of Python
                                               examples/<language>/...   where the commands are run

Each is built once per version of its sources and of the protos; old ones are removed in time.
`protoc` is the compiler that comes with grpcio-tools.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.interop.toolchain import CannotFetch, cache, emptied, fetch, require

ROOT: Final = Path(__file__).parents[2]
INTEROP: Final = Path(__file__).parent
# By language, which is also the name of its folder: the programs that its README takes for granted.
TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "go": ("go",),
    "java": ("java", "mvn"),
    "node": ("node", "npm"),
}
# Beside the example's own sources: what tests put into the copy, by the folder that it goes to.
ADDED: Final[Mapping[str, Mapping[str, Path]]] = {"go": {"oncelog": INTEROP / "go"}}
# What the README's commands do not make.
THEN: Final[Mapping[str, str]] = {"go": "go test -c -o checks ./oncelog"}
BUILD_TIMEOUT_S: Final = 600
UNUSED_S: Final = 7 * 24 * 60 * 60
_BLOCK: Final = re.compile(r"```console\n(.*?)```", re.DOTALL)


class Built(NamedTuple):
    """An example that can be run."""

    folder: Path
    # As in the README, but for the address.
    run: str

    def command(self, bootstrap: str) -> list[str]:
        return ["bash", "-c", f"exec {self.run.replace('localhost:7400', bootstrap)}"]


def built(language: str) -> Built:
    """Raises CannotFetch where a program or the network is missing; a build that fails for another
    reason fails the test."""
    for program in TOOLS[language]:
        require(program)
    build, (run, *_) = _commands(language)
    folder = cache() / "examples" / f"{language}-{_version(language)}"
    if not folder.exists():
        work = emptied(folder)
        _copy(language, work)
        for command in (*build, *filter(None, (THEN.get(language),))):
            _make(command, work / "examples" / language, work / "bin")
        _remove_unused(folder.parent)
        work.rename(folder)
    os.utime(folder)
    return Built(folder / "examples" / language, run)


def _remove_unused(folder: Path) -> None:
    """Versions that nobody has run for a while, of any checkout."""
    for version in folder.iterdir():
        if time.time() - version.stat().st_mtime > UNUSED_S:
            shutil.rmtree(version)


def _commands(language: str) -> tuple[list[str], list[str]]:
    """Those of the first block of the README, and of the second."""
    text = (ROOT / "examples" / language / "README.md").read_text()
    blocks = [
        [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
        for block in _BLOCK.findall(text)
    ]
    assert len(blocks) == 2, f"examples/{language}/README.md: one block builds, the other runs"
    return blocks[0], blocks[1]


def _copy(language: str, work: Path) -> None:
    unwanted = shutil.ignore_patterns("src" if language != "java" else "target", "node_modules")
    shutil.copytree(ROOT / "protos", work / "protos", ignore=shutil.ignore_patterns("src"))
    sources = work / "examples" / language
    shutil.copytree(ROOT / "examples" / language, sources, ignore=unwanted)
    for folder, added in ADDED.get(language, {}).items():
        shutil.copytree(added, sources / folder, dirs_exist_ok=True)
    protoc = work / "bin" / "protoc"
    protoc.parent.mkdir()
    protoc.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m grpc_tools.protoc "$@"\n')
    protoc.chmod(0o755)


def _make(command: str, folder: Path, programs: Path) -> None:
    """What fetches may fail for want of a network."""
    environment = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "GOBIN": str(programs),
        "GOFLAGS": "",
    }
    if re.match(r"go install|npm|mvn", command):
        fetch(["bash", "-c", command], folder, environment)
        return
    if command.startswith("go "):
        fetch(["go", "mod", "download"], folder, environment)
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def _version(language: str) -> str:
    digest = hashlib.sha256(repr((TOOLS, THEN, sys.executable)).encode())
    example = ROOT / "examples" / language
    sources = [path for path in example.rglob("*") if _is_source(path.relative_to(example))]
    sources += [path for added in ADDED.get(language, {}).values() for path in added.iterdir()]
    for path in sorted([*sources, *(ROOT / "protos").glob("*/*/*.proto")]):
        if path.is_file():
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _is_source(path: Path) -> bool:
    made = {"target", "node_modules", "oncelogpb", "example"}
    return not made & set(path.parts)


__all__ = ["TOOLS", "Built", "CannotFetch", "built"]
