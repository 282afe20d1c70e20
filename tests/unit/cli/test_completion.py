"""What the tab key gives: commands and options without a cluster, names where one answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import oncelog
import oncelog.testing
from oncelog_server.cli.app import COMMANDS
from oncelog_server.cli.app import oncelog as command
from oncelog_server.cli.completion import FIRST_LINE, LAST_LINE, SHELLS
from tests.unit.cli.scripted import Cluster, json_of

Run = Callable[..., Result]


def _completed(*words: str, **environment: str) -> list[str]:
    """What a bash is told of `oncelog WORDS` with the cursor behind the last of them."""
    result = CliRunner().invoke(
        command,
        [],
        prog_name="oncelog",
        env={
            "_ONCELOG_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("oncelog", *words)),
            "COMP_CWORD": str(len(words)),
            **environment,
        },
    )
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with oncelog.testing.cluster() as made:
        with oncelog.connect(made.bootstrap) as log:
            log.admin.create_topic("payments", partitions=2)
            log.admin.create_topic("postings", partitions=1)
            consumer = log.consumer(["payments"], group="audit")
            with log.producer() as producer:
                producer.send("payments", b"1", partition=0)
                producer.flush()
            assert consumer.poll(20) is not None
            consumer.commit()
        yield made.bootstrap


def test_commands_and_options_need_no_cluster() -> None:
    assert _completed("") == list(COMMANDS)
    assert _completed("to") == ["topic"]
    assert _completed("topic", "") == [
        "alter", "create", "delete", "describe", "list", "reassign", "truncate"
    ]  # fmt: skip
    assert "--partitions" in _completed("topic", "create", "--par")
    assert _completed("completion", "install", "") == list(SHELLS)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["topic", "describe", ""], ["payments", "postings"]),
        (["topic", "describe", "payments", "po"], ["postings"]),
        (["consume", "pa"], ["payments"]),
        (["produce", "x"], []),
        (["consume", "payments", "--group", "a"], ["audit"]),
        (["group", "describe", ""], ["audit"]),
        (["cluster", "unclean-elect", "pay"], ["payments/0", "payments/1"]),
        (["tx", "resolve", "5", "postings/"], ["postings/0"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_names_come_from_the_cluster(words: list[str], names: list[str], cluster: str) -> None:
    assert _completed(*words, ONCELOG_BOOTSTRAP=cluster) == names


def test_the_cluster_is_found_as_commands_find_it(cluster: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[profiles.here]\nbootstrap = "{cluster}"\n')
    known = {"ONCELOG_CONFIG": str(file)}
    assert _completed("consume", "--profile", "here", "pa", **known) == ["payments"]
    assert _completed("consume", "--bootstrap", cluster, "pa", **known) == ["payments"]
    assert _completed("consume", "pa", ONCELOG_PROFILE="here", **known) == ["payments"]
    assert _completed("profile", "use", "", **known) == ["here"]


@pytest.mark.parametrize("bootstrap", ["127.0.0.1:9", "nowhere", "", "127.0.0.1:99999"])
def test_who_does_not_answer_gives_nothing(bootstrap: str) -> None:
    assert _completed("topic", "describe", "", ONCELOG_BOOTSTRAP=bootstrap or "x:1") == []


def test_a_broken_file_of_profiles_gives_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[")
    assert _completed("topic", "describe", "", ONCELOG_CONFIG=str(file)) == []
    assert _completed("profile", "use", "", ONCELOG_CONFIG=str(file)) == []


# ---------------------------------------------------------------------------------- installing


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("shell", "start_file"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", None)]
)
def test_it_is_installed_once_and_removed_without_a_trace(
    shell: str, start_file: str | None, home: Path, run: Run
) -> None:
    mine = "alias ll='ls -l'\n"
    if start_file is not None:
        (home / start_file).write_text(mine)
    for _ in range(2):
        told = json_of(run(Cluster(), f"completion install {shell} --json"))
    script, *others = map(Path, told["files"])
    assert "_ONCELOG_COMPLETE" in script.read_text()
    assert others == ([] if start_file is None else [home / start_file])
    if start_file is not None:
        text = (home / start_file).read_text()
        assert text.startswith(mine)
        assert text.count(str(script)) == 2
        assert [text.count(line) for line in (FIRST_LINE, LAST_LINE)] == [1, 1]
    json_of(run(Cluster(), f"completion remove {shell} --json"))
    assert not script.exists()
    if start_file is not None:
        assert (home / start_file).read_text() == mine


def test_a_link_to_the_start_file_stays_one(home: Path, run: Run) -> None:
    (home / "kept").write_text("")
    (home / ".bashrc").symlink_to(home / "kept")
    run(Cluster(), "completion install bash")
    assert (home / ".bashrc").is_symlink()
    assert FIRST_LINE in (home / "kept").read_text()


def test_a_block_without_its_end_is_not_guessed_at(home: Path, run: Run) -> None:
    text = f"{FIRST_LINE}\nprecious\n"
    (home / ".bashrc").write_text(text)
    result = run(Cluster(), "completion install bash")
    assert result.exit_code == 1
    assert "remove what is left" in " ".join(result.stderr.split())
    assert (home / ".bashrc").read_text() == text


def test_the_shell_is_that_of_the_terminal(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert json_of(run(Cluster(), "completion install --json"))["shell"] == "fish"
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    result = run(Cluster(), "completion install")
    assert result.exit_code == 2
    assert "bash, zsh, fish" in result.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_takes_it(shell: str, home: Path, run: Run, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    shown = run(Cluster(), f"completion show {shell}").stdout
    run(Cluster(), f"completion install {shell}")
    (tmp_path / "oncelog").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m oncelog_server.cli "$@"\n'
    )
    (tmp_path / "oncelog").chmod(0o755)
    ask = {
        "bash": f". {home}/.bashrc; COMP_WORDS=(oncelog top); COMP_CWORD=1; "
        "_oncelog_completion oncelog; echo ${COMPREPLY[@]}",
        "zsh": f". {home}/.zshrc; which _oncelog_completion > /dev/null && echo topic",
        "fish": "complete -C 'oncelog top' | cut -f1",
    }[shell]
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(home)}
    ran = subprocess.run(
        [shell, "-c", ask], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.split() == ["topic"], (ran.stderr, shown)
