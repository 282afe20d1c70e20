"""The image is made of wheels: from what deploy/Dockerfile copies, the same ones come out."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.wheels.building import ROOT, files

DOCKERFILE = ROOT / "deploy" / "Dockerfile"


def copied() -> list[str]:
    """Files and folders of this repository that the image is made of."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE.read_text(), re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def wheel_command() -> list[str]:
    """What stands behind `pip wheel`, as one line."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    [found] = re.findall(r"^RUN pip wheel (.+?)(?:&&|$)", text, re.MULTILINE)
    return shlex.split(found)


def test_what_it_copies_makes_the_same_wheels(wheels: Path, tmp_path: Path) -> None:
    for path in files():
        if any(path == source or path.startswith(f"{source}/") for source in copied()):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, tmp_path / path)
    words = wheel_command()
    made = tmp_path / "made"
    words[words.index("--wheel-dir") + 1] = str(made)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--quiet", *words],
        cwd=tmp_path,
        check=True,
    )
    names = {wheel.name for wheel in made.iterdir()}
    assert len(names) == 3, "the connector for Spark belongs into images of Spark"
    for name in names:
        with zipfile.ZipFile(made / name) as theirs, zipfile.ZipFile(wheels / name) as ours:
            assert sorted(theirs.namelist()) == sorted(ours.namelist())


def test_what_it_installs_is_wheels_alone() -> None:
    """No second way that a file of ours comes into it, and nothing that needs a compiler."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    [installed] = re.findall(r"pip install (.+?)(?:&&|$)", text, re.MULTILINE)
    words = shlex.split(installed)
    wheel_dir = wheel_command()[wheel_command().index("--wheel-dir") + 1]
    assert f"{wheel_dir}/*.whl" in words
    assert "--only-binary=:all:" in words
    assert not [word for word in words if word.startswith(".")]
