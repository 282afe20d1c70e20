"""Assembles the manifests of deploy/k8s as kustomize does, as far as they use it, so that they are
checked wherever the tests run.

Invariant: a field of a kustomization that is not known here is refused, never skipped.

Left out: the hash in the name of a generated ConfigMap, and with it the references to it.
test_deploy.py compares with the real kustomize where there is one.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

import yaml

Manifest = dict[str, Any]

FIELDS: Final = {
    "apiVersion",
    "kind",
    "namespace",
    "resources",
    "configMapGenerator",
    "images",
    "patches",
}
# Lists whose entries are merged by a field; every other list is replaced as a whole. Of the lists
# of the Kubernetes API, those that are merged here and in no other way elsewhere.
MERGED_BY: Final = {
    "containers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "topologySpreadConstraints": "topologyKey",
}
DELETE: Final = ("$patch", "delete")


def build(directory: Path) -> list[Manifest]:
    """The manifests of a kustomization."""
    spec = yaml.safe_load((directory / "kustomization.yaml").read_text())
    assert set(spec) <= FIELDS, f"teach tests/tidy/kustomization.py {sorted(set(spec) - FIELDS)}"
    found: list[Manifest] = []
    for name in spec.get("resources", ()):
        path = directory / name
        found += build(path) if path.is_dir() else load(path.read_text())
    found += [_config_map(directory, entry) for entry in spec.get("configMapGenerator", ())]
    for entry in spec.get("patches", ()):
        found = _patched(found, directory, entry)
    for manifest in found:
        if "namespace" in spec:
            manifest["metadata"]["namespace"] = spec["namespace"]
        for image in spec.get("images", ()):
            _name_image(manifest, image)
    return found


def load(text: str) -> list[Manifest]:
    """Of a file with several documents. Each on its own: YAML's anchors are shared objects."""
    return [copy.deepcopy(manifest) for manifest in yaml.safe_load_all(text)]


def merge(base: Any, patch: Any, field: str = "") -> Any:
    """A strategic merge patch."""
    if isinstance(base, dict) and isinstance(patch, dict):
        merged = dict(base)
        for key, value in patch.items():
            merged[key] = merge(base[key], value, key) if key in base else copy.deepcopy(value)
        return merged
    if isinstance(base, list) and isinstance(patch, list) and field in MERGED_BY:
        return _merge_lists(base, patch, MERGED_BY[field])
    return copy.deepcopy(patch)


def _merge_lists(base: list[Manifest], patch: list[Manifest], key: str) -> list[Manifest]:
    """What is patched comes first, in the patch's order. So it is with kustomize, and it matters: a
    variable may only refer to those above it."""
    known = {entry[key]: entry for entry in base}
    patched = [merge(known.pop(entry[key], {}), entry) for entry in patch]
    return [*patched, *known.values()]


def _config_map(directory: Path, entry: Manifest) -> Manifest:
    assert set(entry) == {"name", "files"}, f"teach tests/tidy/kustomization.py {sorted(entry)}"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": entry["name"]},
        "data": {name: (directory / name).read_text() for name in entry["files"]},
    }


def _patched(found: list[Manifest], directory: Path, entry: Manifest) -> list[Manifest]:
    [patch] = load(entry["patch"] if "patch" in entry else (directory / entry["path"]).read_text())
    target = entry.get("target")
    chosen = [m for m in found if (_selects(target, m) if target else _is_same(patch, m))]
    assert chosen, f"a patch of {directory} applies to nothing: {entry}"
    if DELETE in patch.items():
        return [manifest for manifest in found if manifest not in chosen]
    if target:
        # The patch's own name is only a placeholder.
        patch = {key: value for key, value in patch.items() if key != "metadata"}
    return [merge(manifest, patch) if manifest in chosen else manifest for manifest in found]


def _is_same(patch: Manifest, manifest: Manifest) -> bool:
    return identity(patch) == identity(manifest)


def identity(manifest: Manifest) -> tuple[str, str]:
    """Kind and name."""
    return manifest["kind"], manifest["metadata"]["name"]


def _selects(target: Manifest, manifest: Manifest) -> bool:
    assert set(target) == {"kind", "labelSelector"}, f"teach tests/tidy/kustomization.py {target}"
    label, _, value = target["labelSelector"].partition("=")
    labels = manifest["metadata"].get("labels", {})
    return bool(manifest["kind"] == target["kind"] and labels.get(label) == value)


def _name_image(manifest: Manifest, image: Manifest) -> None:
    pod = manifest.get("spec", {}).get("template", {}).get("spec", {})
    for container in pod.get("containers", ()):
        if container["image"] == image["name"]:
            container["image"] = f"{image['newName']}:{image['newTag']}"
