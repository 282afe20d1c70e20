"""deploy/Dockerfile.spark and deploy/k8s/spark: Kubernetes takes the manifests, the runner takes
the arguments, and the page's spark-submit line says the same as the SparkApplication."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest

from oncelog_spark.jobs import runner
from tests.tidy.kustomization import Manifest, load
from tests.tidy.test_deploy import DEPLOY, ROOT, VERSIONS

FOLDER = DEPLOY / "k8s" / "spark"
POLICIES = DEPLOY / "k8s" / "base" / "network-policies.yaml"
DOCKERFILE = DEPLOY / "Dockerfile.spark"
[APPLICATION] = load((FOLDER / "spark-application.yaml").read_text())
OTHERS = load((FOLDER / "account.yaml").read_text())
SPEC: Manifest = APPLICATION["spec"]
# Of sparkoperator.k8s.io/v1beta2, as far as it is used: the operator's schema is not here.
FIELDS = {
    "type", "mode", "sparkVersion", "image", "mainApplicationFile", "arguments", "restartPolicy",
    "driver", "executor",
}  # fmt: skip
POD_FIELDS = {"cores", "memory", "serviceAccount", "instances", "template"}


def pod(role: str) -> Manifest:
    """What the operator makes of a template, as far as it matters here."""
    template = SPEC[role]["template"]
    [container] = template["spec"]["containers"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": role, **template["metadata"]},
        "spec": {**template["spec"], "containers": [{**container, "image": SPEC["image"]}]},
    }


def submitted() -> list[str]:
    """The words of the page's spark-submit line."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    [line] = re.findall(r"^spark-submit (?:.*\\\n)*.*$", page, re.MULTILINE)
    return shlex.split(line.replace("\\\n", " "))


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_accepts_every_manifest(version: str) -> None:
    for manifest in [*OTHERS, pod("driver"), pod("executor")]:
        kubernetes_validate.validate(manifest, version, strict=True)
    assert SPEC.keys() <= FIELDS
    assert (SPEC["driver"].keys() | SPEC["executor"].keys()) <= POD_FIELDS


@pytest.mark.parametrize("role", ["driver", "executor"])
def test_what_a_pod_refers_to_is_there_and_the_network_lets_it_in(role: str) -> None:
    made = pod(role)
    assert made["metadata"]["labels"]["oncelog/client"] == "true"
    assert made["spec"]["securityContext"]["runAsNonRoot"] is True
    named = {(m["kind"], m["metadata"]["name"]) for m in OTHERS}
    volumes = made["spec"]["volumes"]
    for volume in volumes:
        if "configMap" in volume:
            assert ("ConfigMap", volume["configMap"]["name"]) in named
        else:
            claim = volume["persistentVolumeClaim"]["claimName"]
            assert ("PersistentVolumeClaim", claim) in named
    [container] = made["spec"]["containers"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in volumes}
    assert ("ServiceAccount", SPEC["driver"]["serviceAccount"]) in named


def test_the_page_names_the_image_that_is_built_and_lets_its_namespace_in() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    said = page[page.index("## Run a Spark job") :]
    assert f"docker build -f deploy/Dockerfile.spark -t {SPEC['image']} ." in said
    assert f"docker push {SPEC['image']}" in said
    # A podSelector alone means pods of the policy's own namespace.
    [policy] = [
        p for p in load(POLICIES.read_text()) if p["metadata"]["name"] == "oncelog-processes"
    ]
    peers = policy["spec"]["ingress"][0]["from"]
    [labels] = [p["namespaceSelector"]["matchLabels"] for p in peers if "namespaceSelector" in p]
    namespaces = set(re.findall(r"kubectl apply -n (\S+) -f deploy/k8s/spark/", said))
    assert len(namespaces) == 1
    for namespace in namespaces:
        assert f"kubectl create namespace {namespace}" in said
        for label, value in labels.items():
            assert f"kubectl label namespace {namespace} {label}={value}" in said


def test_spark_submit_takes_the_function_from_where_the_page_says_to_write_it() -> None:
    line = submitted()
    file = line[line.index("--py-files") + 1].rpartition("/")[2]
    copied = "COPY spark/jobs /opt/spark/jobs"
    assert line[line.index("--py-files") + 1] == f"local:///opt/spark/jobs/{file}"
    assert copied in DOCKERFILE.read_text()
    page = " ".join((ROOT / "docs" / "kubernetes.md").read_text().split())
    assert (ROOT / "spark" / "jobs" / file).exists() or f"write it to `spark/jobs/{file}`" in page


@pytest.mark.parametrize("words", [SPEC["arguments"], None], ids=["application", "spark-submit"])
def test_the_runner_takes_the_arguments(words: list[str] | None) -> None:
    if words is None:
        line = submitted()
        words = line[line.index(SPEC["mainApplicationFile"]) + 1 :]
    command, *arguments = words
    given = runner.main.commands[command].make_context(command, list(arguments)).params
    assert (given["topics"], given["to"], given["name"]) == ("payments", "enriched", "enricher")
    assert given["bootstrap"] == "oncelog.oncelog.svc:7400"
    [container] = pod("driver")["spec"]["containers"]
    paths = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert given["checkpoint"] in paths
    [code] = [m for m in OTHERS if m["kind"] == "ConfigMap"]
    module, _, function = given["transform"].partition(":")
    assert f"def {function}(" in code["data"][f"{module}.py"]


def test_the_line_of_the_page_says_what_the_application_says() -> None:
    line = submitted()
    conf = dict(w.split("=", 1) for flag, w in itertools.pairwise(line) if flag == "--conf")
    prefix = "spark.kubernetes."
    assert conf[f"{prefix}container.image"] == SPEC["image"]
    driver = SPEC["driver"]["serviceAccount"]
    assert conf[f"{prefix}authenticate.driver.serviceAccountName"] == driver
    assert conf["spark.executor.instances"] == str(SPEC["executor"]["instances"])
    for role in ("driver", "executor"):
        assert conf[f"{prefix}{role}.label.oncelog/client"] == "true"
    [claim] = [m for m in OTHERS if m["kind"] == "PersistentVolumeClaim"]
    volume = f"{prefix}driver.volumes.persistentVolumeClaim.checkpoint"
    assert conf[f"{volume}.options.claimName"] == claim["metadata"]["name"]
    assert conf[f"{volume}.mount.path"] in [w.partition("=")[2] for w in line]


def test_the_dockerfile_is_clean_and_holds_what_it_copies() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, DOCKERFILE], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    text = DOCKERFILE.read_text()
    ignored = DOCKERFILE.with_name("Dockerfile.spark.dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored or f"!{Path(source).parts[0]}" in ignored, source
    assert re.findall(r"^USER (\d+):\d+$", text, re.MULTILINE) == ["185"]
    assert pod("driver")["spec"]["securityContext"]["runAsUser"] == 185
    # One Spark: of the image, of the manifest, of what is tested here.
    constraints = (ROOT / "spark" / "pyproject.toml").read_text()
    [tested] = re.findall(r"pyspark==([\d.]+)", constraints)
    assert f"apache/spark:{tested}-" in text
    assert SPEC["sparkVersion"] == tested
    assert (ROOT / "spark" / "jobs" / Path(SPEC["mainApplicationFile"]).name).exists()
