"""deploy/: the manifests are what Kubernetes accepts and what the processes understand, and keep
the rules of every process: nothing is root, nobody waits for another, production is mTLS. What the
probes mean is tests/integration/test_probes.py."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest

from oncelog_server.cli.serve import serve
from oncelog_server.cli.settings import ServeSettings
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.outcomes import SLOT_BYTES
from oncelog_server.core.ids import CONTROL_PARTITIONS
from oncelog_server.core.roles import ROLES
from oncelog_server.runtime.access.config import Mode
from oncelog_server.runtime.node_config import split_address
from oncelog_server.runtime.storage.disk import (
    ALLOCATION_STEP_BYTES_MAX,
    ALLOCATION_STEP_BYTES_MIN,
)
from oncelogpb import rpcs
from tests.integration import test_probes as probes
from tests.tidy.kustomization import Manifest, build, identity, load, merge

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = ("dev", "production")
# The oldest that is promised (docs/kubernetes.md), and the newest whose schemas are known.
VERSIONS = ("1.31", "1.37")
# A generated ConfigMap's name ends in it.
HASH = re.compile(r"(oncelog-config)-[0-9a-z]{10}")
ETCD_MINIMUM = (3, 6, 9)
# Transactions of the whole cluster that a coordinator's volume is enough for, for as long as their
# outcomes are told; docs/kubernetes.md promises those of production.
TRANSACTIONS_PER_S = {"dev": 10, "production": 300}
# Its beginning, its decision, its end: a slot for each.
RECORDS_OF_A_TRANSACTION = 3


@functools.cache
def manifests(overlay: str) -> list[Manifest]:
    return build(DEPLOY / "k8s" / "overlays" / overlay)


def of_kind(overlay: str, kind: str) -> dict[str, Manifest]:
    return {m["metadata"]["name"]: m for m in manifests(overlay) if m["kind"] == kind}


def pods(overlay: str) -> dict[str, Manifest]:
    """The pod specifications, by StatefulSet."""
    sets = of_kind(overlay, "StatefulSet")
    return {name: each["spec"]["template"]["spec"] for name, each in sets.items()}


def container(overlay: str, name: str) -> Manifest:
    [only] = pods(overlay)[name]["containers"]
    return dict(only)


EVERY_SET = [(overlay, name) for overlay in OVERLAYS for name in of_kind(overlay, "StatefulSet")]
PROCESSES = [(overlay, name) for overlay, name in EVERY_SET if name != "etcd"]


# --------------------------------------------------------------------------- what Kubernetes says


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_accepts_every_manifest(overlay: str, version: str) -> None:
    for manifest in manifests(overlay):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_refused() -> None:
    [budget] = [m for m in manifests("dev") if identity(m) == ("PodDisruptionBudget", "etcd")]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(
            merge(budget, {"spec": {"maxUnavailabel": 1}}), VERSIONS[0], strict=True
        )


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_it_is_assembled_as_kustomize_does(overlay: str) -> None:
    command = next(
        (c for c in (["kustomize", "build"], ["kubectl", "kustomize"]) if shutil.which(c[0])), None
    )
    if command is None:
        pytest.skip("neither kustomize nor kubectl is on PATH: assembled by our own code only")
    path = DEPLOY / "k8s" / "overlays" / overlay
    done = subprocess.run([*command, str(path)], check=True, capture_output=True, text=True)
    theirs = {identity(m): m for m in load(HASH.sub(r"\1", done.stdout))}
    assert {identity(m): m for m in manifests(overlay)} == theirs


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_referred_to_is_there(overlay: str) -> None:
    services, accounts = of_kind(overlay, "Service"), of_kind(overlay, "ServiceAccount")
    for name, each in of_kind(overlay, "StatefulSet").items():
        spec, pod = each["spec"], pods(overlay)[name]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"] == labels
        governing = services[spec["serviceName"]]["spec"]
        assert governing["clusterIP"] == "None"
        assert governing["publishNotReadyAddresses"] is True
        assert governing["selector"].items() <= labels.items()
        assert pod["serviceAccountName"] in accounts
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        volumes |= {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
        assert {m["name"] for m in container(overlay, name)["volumeMounts"]} == volumes
    for volume in (v for pod in pods(overlay).values() for v in pod.get("volumes", ())):
        if "configMap" in volume:
            assert volume["configMap"]["name"] in of_kind(overlay, "ConfigMap")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_set_has_one_disruption_budget_that_lets_nodes_drain(overlay: str) -> None:
    budgets = of_kind(overlay, "PodDisruptionBudget")
    assert budgets.keys() == of_kind(overlay, "StatefulSet").keys()
    for name, each in of_kind(overlay, "StatefulSet").items():
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert budgets[name]["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert budgets[name]["spec"]["maxUnavailable"] == 1


# --------------------------------------------------------------------------- rules of every process


@pytest.mark.parametrize(("overlay", "name"), EVERY_SET)
def test_nothing_is_root_or_may_become_it(overlay: str, name: str) -> None:
    pod, only = pods(overlay)[name], container(overlay, name)
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "its variables would be read as settings"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= only["resources"]["requests"].keys()
    assert "memory" in only["resources"]["limits"]


@pytest.mark.parametrize(("overlay", "name"), EVERY_SET)
def test_no_process_waits_for_another_and_no_volume_goes_with_it(overlay: str, name: str) -> None:
    spec = of_kind(overlay, "StatefulSet")[name]["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    policy = spec["persistentVolumeClaimRetentionPolicy"]
    assert policy == {"whenDeleted": "Retain", "whenScaled": "Retain"}


@pytest.mark.parametrize(("overlay", "name"), PROCESSES)
def test_probes_ask_what_the_process_answers(overlay: str, name: str) -> None:
    """Leadership is no part of either, and no hook hands over: SIGTERM does."""
    only = container(overlay, name)
    ready, alive = only["readinessProbe"], only["livenessProbe"]
    assert ready["grpc"]["service"] == probes.READY
    assert probes.READY in {service.full_name for service in rpcs.ALL.values()}
    assert alive["grpc"].get("service", "") == probes.ALIVE
    for probe in (ready, alive):
        assert probe["timeoutSeconds"] == probes.PROBE_TIMEOUT_S
        assert probe["grpc"]["port"] == split_address(settings(overlay, name).node.health_listen)[1]
    silence_ms = alive["periodSeconds"] * alive["failureThreshold"] * 1000
    assert silence_ms > settings(overlay, name).node.lease_ms, "others may lead by then"
    assert "lifecycle" not in only
    # What a process does besides handing over takes seconds.
    grace_s = pods(overlay)[name]["terminationGracePeriodSeconds"]
    assert grace_s >= settings(overlay, name).node.hand_over_max_ms / 1000 + 30


def test_production_has_three_of_each_and_no_two_of_a_kind_on_one_machine() -> None:
    """Required, not preferred: two replicas of a partition must not go down with one machine."""
    for name, each in of_kind("production", "StatefulSet").items():
        assert each["spec"]["replicas"] == 3, name
        labels = each["spec"]["template"]["metadata"]["labels"]
        apart = pods("production")[name]["affinity"]["podAntiAffinity"]
        [term] = apart["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        selected = term["labelSelector"]["matchLabels"]
        assert selected.items() <= labels.items()
        others = [
            other["spec"]["template"]["metadata"]["labels"]
            for other_name, other in of_kind("production", "StatefulSet").items()
            if other_name != name
        ]
        assert not any(selected.items() <= other.items() for other in others), "a kind of its own"


def test_production_may_lose_any_one_process() -> None:
    for name in [name for overlay, name in PROCESSES if overlay == "production"]:
        node = settings("production", name).node
        assert (node.control_replication_factor, node.min_insync_replicas) == (3, 2)
        assert node.balance_after_ms > 0, "after a restart leadership comes back"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_clients_and_processes_are_let_in(overlay: str) -> None:
    policies = of_kind(overlay, "NetworkPolicy")
    closed = policies["oncelog-closed"]["spec"]
    assert closed["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in closed
    for each in of_kind(overlay, "StatefulSet").values():
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert closed["podSelector"]["matchLabels"].items() <= labels.items()
    opened = {
        (name, port["port"])
        for name, policy in policies.items()
        for rule in policy["spec"].get("ingress", ())
        for port in rule["ports"]
    }
    assert opened == {
        ("oncelog-processes", 7400),
        ("oncelog-processes", 7490),
        ("etcd", 2379),
        ("etcd", 2380),
        ("etcd", 2381),
    }
    for policy in policies.values():
        assert all(rule["from"] for rule in policy["spec"].get("ingress", ())), "from: anybody"


# ---------------------------------------------------------------------------- what the process says


def environment(overlay: str, name: str) -> dict[str, str]:
    """As the first pod has it. $(NAME) stands for a variable that is defined above."""
    known = {"metadata.name": f"{name}-0", "metadata.namespace": "oncelog"}
    values: dict[str, str] = {}
    for entry in container(overlay, name)["env"]:
        text = entry.get("value")
        if text is None:
            text = known[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        values[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda m: values[m.group(1)], text)
    return values


@functools.cache
def settings(overlay: str, name: str) -> ServeSettings:
    """What `oncelog serve` makes of arguments, environment and file."""
    command, *arguments = container(overlay, name)["args"]
    assert command == "serve"
    parsed = serve.make_context("serve", arguments).params
    variables = environment(overlay, name)
    assert variables["ONCELOG_CONFIG"] == "/etc/oncelog/oncelog.toml"
    file = DEPLOY / "k8s" / "base" / "oncelog.toml"
    return ServeSettings.make(parsed["roles"], file=file, environment=variables)


def test_the_file_is_found_by_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCELOG_CONFIG", "/etc/oncelog/oncelog.toml")
    parsed = serve.make_context("serve", ["coordinator"]).params
    assert parsed["config_file"] == "/etc/oncelog/oncelog.toml"


@pytest.mark.parametrize(("overlay", "name"), PROCESSES)
def test_the_process_understands_its_settings(overlay: str, name: str) -> None:
    node, only = settings(overlay, name).node, container(overlay, name)
    ports = {port["name"]: port["containerPort"] for port in only["ports"]}
    assert ports == {
        "grpc": split_address(node.listen)[1],
        "health": split_address(node.health_listen)[1],
        "metrics": split_address(node.metrics_listen)[1],
    }
    assert split_address(node.advertise) == (f"{name}-0.oncelog-nodes.oncelog.svc", 7400)
    assert node.log_format == "json"
    assert {m["name"]: m["mountPath"] for m in only["volumeMounts"]}["data"] == node.data_dir


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_role_runs_and_every_member_of_etcd_is_named(overlay: str) -> None:
    roles = [role for o, n in PROCESSES if o == overlay for role in settings(o, n).roles]
    assert sorted(roles) == sorted(ROLES)
    members = [
        f"etcd-{n}" for n in range(of_kind(overlay, "StatefulSet")["etcd"]["spec"]["replicas"])
    ]
    named = environment(overlay, "etcd")["ETCD_INITIAL_CLUSTER"]
    assert [each.partition("=")[0] for each in named.split(",")] == members
    for each in (settings(o, n) for o, n in PROCESSES if o == overlay):
        assert each.node.etcd_endpoints == tuple(f"{member}.etcd-nodes:2379" for member in members)


def test_production_is_mtls_everywhere() -> None:
    for name in (name for overlay, name in PROCESSES if overlay == "production"):
        node = settings("production", name).node
        assert node.tls
        assert node.etcd_tls_ca
        assert node.etcd_tls_certificate
        assert node.etcd_tls_ca != node.tls_ca, "users' certificates must not open etcd"
        assert settings("production", name).mode is Mode.ON
        assert settings("production", name).authorization.operators, "else nobody can add a rule"
    etcd = environment("production", "etcd")
    assert etcd["ETCD_CLIENT_CERT_AUTH"] == etcd["ETCD_PEER_CLIENT_CERT_AUTH"] == "true"
    plain = {key for key, value in etcd.items() if "http://" in value}
    assert plain == {"ETCD_LISTEN_METRICS_URLS"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_etcd_is_one_that_does_not_lose_what_it_acknowledged(overlay: str) -> None:
    tag = container(overlay, "etcd")["image"].rpartition(":v")[2]
    assert tuple(map(int, tag.split("."))) >= ETCD_MINIMUM


# ----------------------------------------------------------------------------------------- the disk


@pytest.mark.parametrize(
    ("overlay", "name"), [each for each in PROCESSES if "coordinator" in settings(*each).roles]
)
def test_a_coordinators_volume_holds_what_it_keeps(overlay: str, name: str) -> None:
    """What ended stays for days, up to a limit of each journal, and nothing looks at the free space
    before it is kept: a volume that is too small fills, on all three coordinators at once."""
    node = settings(overlay, name).node
    coordinator = settings(overlay, name).loaded.of(CoordinatorConfig)
    # A file goes when all of it may, so up to one more stays.
    journals = CONTROL_PARTITIONS * (node.control_journal_bytes_max + node.segment_bytes)
    told_for_s = coordinator.outcome_retention_ms * 33 / 32 / 1000
    slots = TRANSACTIONS_PER_S[overlay] * told_for_s * RECORDS_OF_A_TRANSACTION * SLOT_BYTES
    assert volume_bytes(overlay, name) >= journals + slots + node.disk_free_floor_bytes


def test_the_page_says_how_many_transactions_that_are() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert f"{TRANSACTIONS_PER_S['production']} transactions a second" in page


def test_the_page_says_what_a_partition_takes_ahead() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert f"takes {ALLOCATION_STEP_BYTES_MIN >> 10} KiB of disk from its first record" in page
    assert f"{ALLOCATION_STEP_BYTES_MAX >> 20} MiB at most, ahead of its writes" in page


def volume_bytes(overlay: str, name: str) -> int:
    [claim] = of_kind(overlay, "StatefulSet")[name]["spec"]["volumeClaimTemplates"]
    asked = claim["spec"]["resources"]["requests"]["storage"]
    return int(asked.removesuffix("Gi")) << 30


# --------------------------------------------------------------------------------------- the image


def test_the_dockerfile_is_clean() -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
        "hadolint"
    )
    assert linter, "run `make install`: requirements-dev.txt brings hadolint"
    done = subprocess.run(
        [linter, str(DEPLOY / "Dockerfile")], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_the_image_holds_what_it_copies_and_runs_as_the_pods_user() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, f"deploy/Dockerfile.dockerignore leaves {source} out"
    [user] = re.findall(r"^USER (\d+):(\d+)$", text, re.MULTILINE)
    for overlay, name in PROCESSES:
        context = pods(overlay)[name]["securityContext"]
        assert (str(context["runAsUser"]), str(context["runAsGroup"])) == user
