"""Settings: what weighs more, what is refused, and what people are shown."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.runtime.config import ConfigError, Source, help_of, load
from oncelog_server.runtime.node_config import NodeConfig, split_address


@dataclass(frozen=True, slots=True)
class SampleConfig:
    """Each field: meaning, unit, danger."""

    # How long, milliseconds.
    # Danger: none.
    wait_ms: int = 5
    # Where, and where else.
    places: tuple[str, ...] = ()
    others: tuple[str, ...] = ("a", "b")
    ratio: float = 0.5
    on: bool = field(default=False, metadata={"help": "From the metadata."})

    def validate(self) -> None:
        if self.wait_ms < 0:
            raise ValueError("sample.wait_ms must be 0 or more")


KNOWN = {"sample": SampleConfig, "sample_long": SampleConfig}


def write(tmp_path: Any, text: str) -> str:
    path = tmp_path / "oncelog.toml"
    path.write_text(text)
    return str(path)


def test_the_command_line_beats_the_environment_beats_the_file(tmp_path: Any) -> None:
    file = write(tmp_path, "[sample]\nwait_ms = 1\nratio = 1\non = true\nplaces = ['x', 'y']\n")
    settings = load(
        {"sample": SampleConfig},
        file=file,
        environment={"ONCELOG_SAMPLE_WAIT_MS": "2", "ONCELOG_SAMPLE_RATIO": "2.5", "PATH": "/"},
        pairs=["sample.wait_ms=3"],
    )
    expected = SampleConfig(wait_ms=3, ratio=2.5, on=True, places=("x", "y"))
    assert settings.of(SampleConfig) == expected
    shown = {v.name: (v.value, v.source) for v in settings.values}
    assert shown == {
        "sample.wait_ms": ("3", Source.COMMAND_LINE),
        "sample.ratio": ("2.5", Source.ENVIRONMENT),
        "sample.on": ("True", Source.FILE),
        "sample.places": ("x,y", Source.FILE),
        "sample.others": ("a,b", Source.DEFAULT),
    }


def test_a_list_is_written_with_commas_outside_of_a_file() -> None:
    settings = load({"sample": SampleConfig}, pairs=["sample.places=a:1, b:2"])
    assert settings.of(SampleConfig).places == ("a:1", "b:2")


def test_profiles_in_the_same_file_are_of_commands(tmp_path: Any) -> None:
    file = write(
        tmp_path, "profile = 'a'\n[profiles.a]\nbootstrap = 'h:1'\n[sample]\nwait_ms = 1\n"
    )
    assert load({"sample": SampleConfig}, file=file).of(SampleConfig).wait_ms == 1


def test_the_longer_section_name_wins() -> None:
    settings = load(KNOWN, environment={"ONCELOG_SAMPLE_LONG_WAIT_MS": "9"})
    shown = {v.name: v.value for v in settings.values}
    assert (shown["sample.wait_ms"], shown["sample_long.wait_ms"]) == ("5", "9")


REFUSALS = [
    ("[sample]\nwait_sm = 1", {}, [], r"wait_sm.*did you mean 'wait_ms'"),
    ("[smaple]\nwait_ms = 1", {}, [], r"smaple.*did you mean 'sample'"),
    ("sample = 1", {}, [], r"must be a section"),
    ("[sample", {}, [], r"is not TOML"),
    ("[sample]\nwait_ms = '1'", {}, [], r"\[sample\] wait_ms: Expected `int`"),
    ("", {"ONCELOG_SAMPLE_WAIT": "1"}, [], r"ONCELOG_SAMPLE_WAIT.*did you mean 'wait_ms'"),
    ("", {"ONCELOG_SAMPLE_WAIT_MS": "soon"}, [], r"ONCELOG_SAMPLE_WAIT_MS: Expected `int`"),
    ("", {}, ["wait_ms=1"], r"write section\.key=value"),
    ("", {}, ["sample.zzzzzz=1"], r"there are: on, others, places"),
    ("", {}, ["sample.wait_ms=-1"], r"sample\.wait_ms must be 0 or more"),
]


@pytest.mark.parametrize(("text", "environment", "pairs", "message"), REFUSALS)
def test_a_refusal_says_where_and_what_to_do(
    tmp_path: Any, text: Any, environment: Any, pairs: Any, message: Any
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(
            {"sample": SampleConfig},
            file=write(tmp_path, text),
            environment=environment,
            pairs=pairs,
        )


def test_a_missing_file_is_named(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load({"sample": SampleConfig}, file=tmp_path / "absent.toml")


def test_help_is_the_comment_above_or_the_metadata() -> None:
    assert help_of(SampleConfig) == {
        "wait_ms": "How long, milliseconds. Danger: none.",
        "places": "Where, and where else.",
        "others": "Where, and where else.",
        "ratio": "Where, and where else.",
        "on": "From the metadata.",
    }


@pytest.mark.parametrize(
    "kind", [NodeConfig, CoordinatorConfig, PartitionLeaderConfig, OffsetManagerConfig]
)
def test_the_defaults_of_every_role_are_valid_and_every_field_says_what_it_is(kind: Any) -> None:
    settings = load({"section": kind})
    assert settings.of(kind) == kind()
    for setting in fields(kind):
        assert len(help_of(kind)[setting.name]) > 15, f"{kind.__name__}.{setting.name}"


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("lease_ms=500", "lease_ms must be 1000 to 60000"),
        ("lease_ms=60001", "lease_ms must be 1000 to 60000"),
        ("tick_ms=4000", "at most a quarter"),
        ("listen=nowhere", "node.listen: 'nowhere' is not host:port"),
        ("listen=h:²", "node.listen: 'h:²' is not host:port"),
        ("tls_ca=ca.pem", "all three or none"),
        ("etcd_tls_key=k.pem", "both or none"),
        ("etcd_prefix=oncelog", "must start and end"),
        ("log_level=loud", "Invalid enum value"),
        ("segment_bytes=0", "segment_bytes must be above 0"),
        ("segment_bytes=1", "segment_bytes must be 1024 to 2147483648, not 1$"),
        # Positions in an index of 32 bits: every append behind them was INTERNAL.
        (f"segment_bytes={8 << 30}", "segment_bytes must be 1024 to 2147483648"),
    ],
)
def test_a_node_setting_that_cannot_work_is_refused(pair: Any, message: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        load({"node": NodeConfig}, pairs=[f"node.{pair}"])


def test_addresses() -> None:
    assert split_address("127.0.0.1:7400") == ("127.0.0.1", 7400)
    assert split_address("[::1]:0") == ("::1", 0)
    for wrong in ("host", ":1", "host:", "host:x", "host:70000"):
        with pytest.raises(ValueError):
            split_address(wrong)


@pytest.mark.parametrize("listen", ["0.0.0.0:7400", "[::]:7400"])
def test_every_address_can_be_listened_on_but_not_advertised(listen: str) -> None:
    NodeConfig(listen=listen, advertise="coordinator-0.nodes:7400").validate()
    with pytest.raises(ValueError, match=r"give node\.advertise, too"):
        NodeConfig(listen=listen).validate()
    with pytest.raises(ValueError, match=r"node\.advertise: nobody can connect to"):
        NodeConfig(listen=listen, advertise=listen).validate()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"listen_external": "0.0.0.0:7500"}, r"give node\.advertise_external, too"),
        ({"listen_external": "10.0.0.1:0"}, "must name a port"),
        ({"advertise_external": "log.example.org:7500"}, r"node\.listen_external: give that, too"),
        (
            {"listen_external": "0.0.0.0:7500", "advertise_external": "0.0.0.0:7500"},
            r"node\.advertise_external: nobody can connect to",
        ),
    ],
)
def test_an_external_address_is_one_that_can_be_told(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        NodeConfig(**given).validate()  # type: ignore[arg-type]


def test_what_is_told_outside() -> None:
    assert NodeConfig().external is None
    assert NodeConfig(listen_external="10.0.0.1:7500").external == ("10.0.0.1", 7500)
    both = NodeConfig(listen_external="0.0.0.0:7500", advertise_external="log.example.org:443")
    both.validate()
    assert both.external == ("log.example.org", 443)


@pytest.mark.parametrize("rack", ["r" * 256, "ü" * 128, "two\nlines"])
def test_a_rack_is_a_short_name_on_one_line(rack: str) -> None:
    NodeConfig(rack="eu-central-1a").validate()
    with pytest.raises(ValueError, match=r"node\.rack must be at most 255 bytes"):
        NodeConfig(rack=rack).validate()
