"""The protos please `buf lint`, and break nothing that the last release promised (protos/buf.yaml
says what, and what is excepted).

buf comes as an npm package, or is built by Go, once; where neither runs here, these are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop import toolchain
from tests.tidy.proto_files import PROTOS


@pytest.fixture(scope="session")
def buf() -> Path:
    try:
        return toolchain.buf()
    except toolchain.CannotFetch as error:
        pytest.skip(f"NOT TESTED: the protos were not linted, for there is no buf: {error}")


def test_the_protos_please_the_linter(buf: Path) -> None:
    assert _complaints(buf, PROTOS, "lint") == ""


def test_nothing_breaks_that_the_last_release_promised(buf: Path) -> None:
    assert _complaints(buf, PROTOS, "breaking", "--against", _baseline()) == ""


@pytest.mark.parametrize(
    ("written", "instead", "complaint"),
    [
        ("fixed64 generation = 2", "fixed64 fence = 2", "changed name"),
        ("fixed64 generation = 2", "uint64 generation = 2", "changed type"),
        ("uint32 number = 2;\n", "", "was deleted"),
        ("  WAIT_VISIBLE = 2;\n", "", "was deleted"),
    ],
)
def test_what_breaks_a_promise_is_told(
    buf: Path, tmp_path: Path, written: str, instead: str, complaint: str
) -> None:
    changed = tmp_path / "protos"
    shutil.copytree(PROTOS, changed, ignore=shutil.ignore_patterns("src"))
    types = changed / "oncelogpb/v1/types.proto"
    text = types.read_text()
    assert written in text
    types.write_text(text.replace(written, instead, 1))
    assert complaint in _complaints(buf, changed, "breaking", "--against", _baseline())


def _baseline() -> str:
    (kept,) = (PROTOS / "baseline").glob("*.binpb")
    return str(kept)


def _complaints(buf: Path, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [buf, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout + done.stderr
