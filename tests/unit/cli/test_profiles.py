"""How a command reaches its cluster: flag, environment, profile, the running `up`, default."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from oncelog_server.cli import connection
from oncelog_server.cli.failures import CommandFailed
from oncelog_server.cli.profiles import Profile, ProfileFile, config_path
from tests.unit.cli.scripted import Cluster, json_of

Run = Callable[..., Result]
USUAL = connection.DEFAULT_BOOTSTRAP


@pytest.fixture
def certificates(run: Run) -> list[str]:
    """Three files in the directory of the test."""
    for name in ("ca.pem", "me.pem", "me.key"):
        Path(name).write_text(name)
    return ["--tls-ca ca.pem", "--tls-cert me.pem", "--tls-key me.key"]


def _shown(run: Run, flags: str = "") -> dict[str, tuple[Any, str]]:
    told = json_of(run(Cluster(), f"profile show --json {flags}"))
    return {name: (given["value"], given["source"]) for name, given in told["settings"].items()}


def test_each_setting_comes_from_the_first_place_that_has_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _shown(run)["bootstrap"] == (USUAL, "default")
    Path(".oncelog").mkdir()
    Path(".oncelog/running.json").write_text(json.dumps({"bootstrap": "up:1", "pid": 1}))
    assert _shown(run)["bootstrap"] == ("up:1", "`oncelog up` over .oncelog")
    run(Cluster(), "profile add far --bootstrap far:2 --timeout 3 --use")
    assert _shown(run)["bootstrap"] == ("far:2", "profile far")
    assert _shown(run)["timeout"] == (3.0, "profile far")
    monkeypatch.setenv("ONCELOG_BOOTSTRAP", "env:3")
    assert _shown(run)["bootstrap"] == ("env:3", "ONCELOG_BOOTSTRAP")
    assert _shown(run, "--bootstrap flag:4")["bootstrap"] == ("flag:4", "--bootstrap")


def test_a_command_goes_where_the_profile_says(run: Run) -> None:
    run(Cluster(), "profile add far --bootstrap far:2")
    cluster = Cluster()
    assert run(cluster, "topic list").exit_code == 0
    run(cluster, "topic list --profile far")
    run(cluster, "profile use far")
    run(cluster, "topic list")
    run(cluster, "topic list --profile none")
    run(cluster, "profile use --none")
    run(cluster, "topic list")
    assert cluster.bootstraps == [USUAL, "far:2", "far:2", USUAL, USUAL]


def test_every_setting_has_a_variable(
    run: Run, certificates: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "ONCELOG_BOOTSTRAP": "env:1",
        "ONCELOG_TIMEOUT": "7",
        "ONCELOG_TLS": "yes",
        "ONCELOG_TLS_CA": "ca.pem",
        "ONCELOG_TLS_CERT": "me.pem",
        "ONCELOG_TLS_KEY": "me.key",
        "ONCELOG_TLS_SERVER_NAME": "log",
    }
    assert set(values) == {setting.variable for setting in connection.SETTINGS}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    shown = _shown(run)
    assert {source for _, source in shown.values()} == set(values)
    assert shown["timeout"][0] == 7.0
    assert shown["tls"][0] is True


def test_the_profile_in_use_is_taken_whole_or_not_at_all(
    run: Run, certificates: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate is for its own cluster: another one that a flag names is not shown it."""
    assert (
        run(
            Cluster(), f"profile add live --bootstrap live:1 --use {' '.join(certificates)}"
        ).exit_code
        == 0
    )
    here = _shown(run)
    assert here["tls_cert"] == (str(Path("me.pem").resolve()), "profile live")
    other = _shown(run, "--bootstrap other:1")
    assert other["tls_cert"] == (None, "default")
    # Who names the profile wants it, and may say the rest himself.
    named = _shown(run, "--profile live --bootstrap other:1")
    assert (named["bootstrap"][0], named["tls_cert"][1]) == ("other:1", "profile live")
    monkeypatch.setenv("ONCELOG_PROFILE", "live")
    assert _shown(run, "--bootstrap other:1")["tls_key"][1] == "profile live"


@pytest.mark.parametrize(
    ("flags", "tls"),
    [
        ("", False),
        ("--tls", True),
        ("--tls-ca ca.pem", True),
        ("--tls-ca ca.pem --no-tls", False),
        ("--tls-cert me.pem --tls-key me.key", True),
    ],
)
def test_when_tls_is_spoken(flags: str, tls: bool, run: Run, certificates: list[str]) -> None:
    assert json_of(run(Cluster(), f"profile show --json {flags}"))["tls"] is tls


def test_what_a_client_is_given(run: Run, certificates: list[str]) -> None:
    made = connection.resolve(
        {s.name: None for s in connection.SETTINGS}
        | {"bootstrap": "h:1", "tls_ca": "ca.pem", "tls_server_name": "log", "timeout": 2.5},
        None,
        source_of=lambda name: None,
    )
    assert made.tls is not None
    assert (made.tls.ca_file, made.tls.server_name) == ("ca.pem", "log")
    assert (made.bootstrap, made.timeout_ms) == ("h:1", 2_500)


def test_profiles_are_listed_shown_replaced_removed(run: Run) -> None:
    assert json_of(run(Cluster(), "profile list --json")) == []
    assert run(Cluster(), "profile add a --bootstrap a:1").exit_code == 0
    refused = run(Cluster(), "profile add a --bootstrap a:2")
    assert refused.exit_code == 2
    assert "--replace" in refused.stderr
    run(Cluster(), "profile add a --bootstrap a:2 --replace")
    run(Cluster(), "profile add b --bootstrap b:1 --tls --use")
    listed = json_of(run(Cluster(), "profile list --json"))
    assert [(one["name"], one["in_use"], one["settings"]) for one in listed] == [
        ("a", False, {"bootstrap": "a:2"}),
        ("b", True, {"bootstrap": "b:1", "tls": True}),
    ]
    assert "b:1" in run(Cluster(), "profile list").stdout
    assert "which was in use" in run(Cluster(), "profile remove b").stdout
    assert _shown(run)["bootstrap"] == (USUAL, "default")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("profile add none --bootstrap a:1", "means no profile"),
        ("profile add a/b --bootstrap a:1", "cannot name a profile"),
        ("profile add a", "--bootstrap"),
        ("profile add a --bootstrap nowhere", "host:port"),
        ("profile add a --bootstrap a:1 --tls-cert /dev/null", ""),
        ("profile use nobody", "There is no profile 'nobody'"),
        ("profile use", "--none"),
        ("profile remove nobody", "There is no profile"),
        ("topic list --profile nobody", "There is no profile"),
        ("topic list --timeout 0", "timeout"),
    ],
)
def test_wrong_words(line: str, said: str, run: Run) -> None:
    result = run(Cluster(), line)
    assert result.exit_code == 2, result.output
    assert said in result.stderr


# ------------------------------------------------------------------------------------- the file


WRITTEN = """\
# Mine.
profile = "old"   # for now

[node]
etcd_endpoints = [
    "a:1",
]

# About the first.
[profiles.first]
bootstrap = "f:1"   # its address

# About the second.
[profiles."second"]
tls_ca = "keys/ca.pem"
bootstrap = "s:1"
"""


def _file(tmp_path: Path, text: str = WRITTEN) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_files_stand_beside_the_file_that_names_them(tmp_path: Path) -> None:
    file = ProfileFile.read(_file(tmp_path))
    assert file.in_use == "old"
    assert file.profiles["second"].tls_ca == str(tmp_path / "keys/ca.pem")


def test_a_change_leaves_the_rest_as_it_was(tmp_path: Path) -> None:
    path = _file(tmp_path)
    ProfileFile.read(path).put("third", Profile(bootstrap='t:1 "x"'))
    ProfileFile.read(path).put("first", Profile(bootstrap="f:2", timeout=2.0))
    ProfileFile.read(path).use("third")
    assert (
        path.read_text()
        == WRITTEN.replace('profile = "old"   # for now\n', "")
        .replace("# Mine.", 'profile = "third"\n# Mine.')
        .replace('bootstrap = "f:1"   # its address', 'bootstrap = "f:2"\ntimeout = 2.0')
        + '\n[profiles.third]\nbootstrap = "t:1 \\"x\\""\n'
    )
    ProfileFile.read(path).remove("first")
    ProfileFile.read(path).remove("third")
    content = tomllib.loads(path.read_text())
    assert sorted(content["profiles"]) == ["second"]
    assert content["node"] == {"etcd_endpoints": ["a:1"]}
    assert "profile" not in content
    assert "# About the second." in path.read_text()


def test_a_file_in_another_form_is_left_alone(tmp_path: Path) -> None:
    text = 'profiles = { a = { bootstrap = "a:1" } }\n'
    path = _file(tmp_path, text)
    file = ProfileFile.read(path)
    assert file.profiles["a"].bootstrap == "a:1"
    changes: list[Callable[[], None]] = [
        lambda: file.put("a", Profile(bootstrap="b:1")),
        lambda: file.put("b", Profile(bootstrap="b:1")),
        lambda: file.remove("a"),
    ]
    for change in changes:
        with pytest.raises(CommandFailed, match="edit it by hand"):
            change()
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("profile = 3", "in quotes"),
        ("[profiles", "is not TOML"),
        ("[profiles.a]\nbootstap = 'a:1'", "did you mean 'bootstrap'"),
        ("[profiles.a]\ntimeout = 'soon'", "timeout cannot be 'soon'"),
        ("[profiles.a]\ntimeout = true", "timeout cannot be True"),
        ("[profiles.a]\ntimeout = 601", "at most 600"),
        ("profiles = 3", r"\[profiles.NAME\]"),
        ("profiles.a = 3", r"\[profiles.a\]"),
    ],
)
def test_a_file_that_cannot_be_understood_says_where(
    text: str, said: str, tmp_path: Path, run: Run
) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(CommandFailed, match=said):
        ProfileFile.read(path)
    # Who needs no profile is not hindered.
    assert run(Cluster(), "topic list --bootstrap a:1").exit_code == 0
    assert run(Cluster(), "topic list").exit_code == 1


def test_where_the_file_is() -> None:
    assert config_path({"HOME": "/h"}) == Path("/h/.config/oncelog/config.toml")
    assert config_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/oncelog/config.toml")
    assert config_path({"ONCELOG_CONFIG": "/f", "XDG_CONFIG_HOME": "/x"}) == Path("/f")
