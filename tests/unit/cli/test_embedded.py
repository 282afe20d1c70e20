"""What `oncelog up` stands on: the folder, the child processes, the settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oncelog.options import Tls
from oncelog_server.cli import up
from oncelog_server.cli.app import oncelog
from oncelog_server.cli.failures import CommandFailed
from oncelog_server.cli.folder import Folder
from oncelog_server.cli.processes import Service, show_exit
from oncelog_server.cli.running import running_bootstrap
from oncelog_server.cli.settings import ServeSettings
from oncelog_server.cli.shared_settings import require_shareable
from oncelog_server.runtime.config import ConfigError


def test_a_folder_has_one_holder(tmp_path: Path) -> None:
    held = Folder.take(tmp_path / "new")
    held.announce("a:1,b:2")
    assert running_bootstrap(tmp_path / "new") == "a:1,b:2"
    with pytest.raises(CommandFailed, match="in use by another"):
        Folder.take(tmp_path / "new")
    held.close()
    assert running_bootstrap(tmp_path / "new") is None
    Folder.take(tmp_path / "new").close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandFailed, match="file"):
        Folder.take(tmp_path / "file")


def test_a_child_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    service = Service("coordinator", ["no-such-command"], address="h:1", log=tmp_path / "c.log")
    assert service.exit_code is None
    service.start()
    assert service._process is not None
    service._process.wait(60)
    with pytest.raises(CommandFailed, match="no-such-command") as failure:
        up._require_alive([service], etcd=_Etcd())  # type: ignore[arg-type]
    assert "exit code 2" in str(failure.value)
    assert service.stop()


class _Etcd:
    """Lives."""

    def alive(self) -> bool:
        return True


class _Child:
    """A process that ends after a while."""

    pid = 1

    def __init__(self) -> None:
        self.terminated = 0

    def poll(self) -> int | None:
        return None

    def terminate(self) -> None:
        self.terminated += 1

    def wait(self, timeout: float | None = None) -> int:
        return 0


def test_a_child_is_asked_to_stop_once(tmp_path: Path) -> None:
    """A second SIGTERM kills a process whose handlers are gone, in the middle of a clean end."""
    service = Service("coordinator", [], address="h:1", log=tmp_path / "c.log")
    child = _Child()
    service._process = child  # type: ignore[assignment]
    service.ask_to_stop()
    assert service.stop()
    assert child.terminated == 1


@pytest.mark.parametrize(("code", "shown"), [(0, "exit code 0"), (-9, "SIGKILL"), (-99, "99")])
def test_how_a_process_ended(code: int, shown: str) -> None:
    assert shown in show_exit(code)


def test_settings_by_weight(tmp_path: Path) -> None:
    """Default, file, environment, command line."""
    file = tmp_path / "oncelog.toml"
    file.write_text("[node]\nlease_ms = 6000\ntick_ms = 50\nstreams_max = 7\n")
    settings = ServeSettings.make(
        ["offset_manager", "coordinator"],
        file=file,
        environment={"ONCELOG_NODE_LEASE_MS": "7000", "ONCELOG_NODE_TICK_MS": "60"},
        pairs=["node.lease_ms=8000", "offset_manager.groups_max=5"],
    )
    assert settings.roles == ("coordinator", "offset_manager")
    node = settings.node
    assert (node.lease_ms, node.tick_ms, node.streams_max) == (8000, 60, 7)
    assert settings.role_settings == {"coordinator": {}, "offset_manager": {"groups_max": "5"}}


def test_a_misspelt_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="groups_max"):
        ServeSettings.make(["coordinator"], pairs=["offset_manager.group_max=5"])


# ----------------------------------------------------------------------- settings of all processes


def _up(tmp_path: Path, *words: str, **environment: str) -> Result:
    """Nothing is started where a setting is refused."""
    folder = tmp_path / "folder"
    result = CliRunner().invoke(
        oncelog, ["up", f"--data={folder}", *words], env={"ONCELOG_ETCD": "/nowhere", **environment}
    )
    assert not folder.exists() or result.exit_code != 2, "it was refused before anything was made"
    return result


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("node.metrics_listen=127.0.0.1:9100", "--metrics-ports-from"),
        ("node.health_listen=127.0.0.1:9100", "port 0"),
        ("node.advertise=here:7400", "--one-process"),
        ("node.listen=127.0.0.1:7400", "--ports-from"),
        ("node.data_dir=/tmp/x", "--data"),
        ("node.etcd_endpoints=a:1", "its own"),
        ("node.tick_msec=5", "did you mean 'tick_ms'"),
        ("node.lease_ms=1", "node.lease_ms must be"),
    ],
)
def test_up_refuses_what_several_processes_cannot_share_or_nobody_knows(
    setting: str, said: str, tmp_path: Path
) -> None:
    result = _up(tmp_path, f"--set={setting}")
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split())


def test_settings_of_the_environment_and_of_a_file_are_looked_at_too(tmp_path: Path) -> None:
    result = _up(tmp_path, ONCELOG_NODE_METRICS_LISTEN="127.0.0.1:9100")
    assert result.exit_code == 2
    assert "ONCELOG_NODE_METRICS_LISTEN" in result.stderr or "environment" in result.stderr
    file = tmp_path / "config.toml"
    file.write_text('[node]\nhealth_listen = "127.0.0.1:9100"\n')
    assert _up(tmp_path, ONCELOG_CONFIG=str(file)).exit_code == 2


def test_a_file_of_profiles_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    result = _up(tmp_path, "--free-ports", ONCELOG_CONFIG=str(tmp_path / "absent.toml"))
    assert result.exit_code == 1, result.output
    assert "/nowhere" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--set=node.metrics_listen=127.0.0.1:0"],
        ["--set=node.metrics_listen=127.0.0.1:9100", "--one-process"],
        ["--metrics-ports-from=9100"],
        [],
    ],
)
def test_what_can_be_shared_goes_on_to_the_start(words: list[str], tmp_path: Path) -> None:
    """And ends there: no etcd is named that could be started."""
    result = _up(tmp_path, *words, "--free-ports")
    assert result.exit_code == 1, result.output
    assert "/nowhere" in result.stderr


def test_each_process_gets_metrics_of_its_own(tmp_path: Path) -> None:
    ports = up.metrics_ports(9100, ["coordinator", "partition_leader"])
    assert ports == {"coordinator": 9100, "partition_leader": 9101}
    assert up.metrics_ports(None, ["coordinator"]) == {}


def test_up_reaches_its_processes_as_it_tells_them_to_be_reached() -> None:
    def tls(*pairs: str) -> Tls | None:
        node = require_shareable(pairs, processes=3, file=None, environment={})
        return up.tls_of(node)

    assert tls() is None
    files = ("node.tls_ca=ca.pem", "node.tls_certificate=c.pem", "node.tls_key=k.pem")
    assert tls(*files) == Tls(ca_file="ca.pem", certificate_file="c.pem", key_file="k.pem")
