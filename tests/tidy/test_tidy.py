"""Style that a test can hold. Each failure names the replacement."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "services" / "oncelog_server"
LINES_MAX = 600
FORBIDDEN_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|misc|manager)(_|$)")
# The role is called so by the design; it is a domain word.
ALLOWED_NAMES = {"offset_manager", "offset_manager_pb2", "offset_manager_pb2_grpc"}


def _python_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    files = [ROOT / line for line in listed.stdout.splitlines()]
    return [file for file in files if file.exists() and "_pb2" not in file.name]


def test_no_file_is_longer_than_the_wall() -> None:
    long = {
        str(file.relative_to(ROOT)): lines
        for file in _python_files()
        if (lines := len(file.read_text().splitlines())) > LINES_MAX
    }
    assert not long, f"split by noun, which two nouns live in them? {long}"


def test_names_are_nouns_of_the_domain() -> None:
    vague = [
        str(file.relative_to(ROOT))
        for file in _python_files()
        for part in file.relative_to(ROOT).with_suffix("").parts
        if FORBIDDEN_NAMES.search(part) and part not in ALLOWED_NAMES
    ]
    assert not vague, f"name the file after what it holds: {vague}"


def test_services_open_the_outside_only_in_runtime() -> None:
    opening = re.compile(
        r"(?<!def )(?<![.\w])open\(|\bsocket\.|\btime\.(time|monotonic)|datetime\.now"
    )
    offenders = [
        str(file.relative_to(ROOT))
        for file in _python_files()
        if file.is_relative_to(SERVICES)
        and not file.is_relative_to(SERVICES / "runtime")
        and not file.is_relative_to(SERVICES / "cli")
        and opening.search(_code(file))
    ]
    assert not offenders, (
        f"take a port (services/oncelog_server/core/ports.py) instead: {offenders}"
    )


def test_decoders_are_built_at_import() -> None:
    """A call that names its type describes it at its first use: slow, and where several threads
    come to it at once, a crash."""
    offenders = [
        str(file.relative_to(ROOT))
        for file in _python_files()
        if not file.is_relative_to(ROOT / "tests")
        and re.search(r"msgspec\.(json|msgpack)\.decode\(", _code(file))
    ]
    assert not offenders, f"make a module constant, msgspec.json.Decoder(Type): {offenders}"


def test_ids_are_shown_in_one_form() -> None:
    """So that what a message names can be searched in logs and given to `oncelog tx describe`."""
    offenders = [
        str(file.relative_to(ROOT))
        for file in _python_files()
        if not file.is_relative_to(ROOT / "tests")
        and re.search(r"\{[^{}]*(tx_id|producer_id)[^{}]*:#?\d*[xd]\}|:#x\}", _code(file))
    ]
    assert not offenders, f"write {{show_id(...)}} (oncelogpb.ids): {offenders}"


def test_modules_say_what_they_are_for() -> None:
    silent = [
        str(file.relative_to(ROOT))
        for file in _python_files()
        if file.is_relative_to(SERVICES)
        and file.name != "__init__.py"
        and not file.read_text().lstrip().startswith('"""')
    ]
    assert not silent, f"open with a docstring: purpose, invariants, what is left out: {silent}"


def _code(file: Path) -> str:
    lines = (line for line in file.read_text().splitlines() if not line.lstrip().startswith("#"))
    return re.sub(r'""".*?"""', "", "\n".join(lines), flags=re.DOTALL)
