"""The version of this repository: every place that it stands in, and the verb that changes it.

    make version TO=0.2.0

All four distributions have one version and pin each other to it: they are released together. Each
package carries it as a constant, which its distribution takes over, so that it is right without an
installation, too (a zip that travels with a Spark job, an editable install that is a week old).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
# As PEP 440 writes a release, with or without a pre-release behind it.
FORM: Final = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
_NUMBER: Final = r"(?P<version>\d+\.\d+\.\d+\w*)"


class Place(NamedTuple):
    """A file, and how the version stands there, so many times."""

    path: str
    pattern: str
    times: int = 1


_CONSTANT: Final = rf'^__version__ = "{_NUMBER}"$'
_PIN: Final = rf'"oncelog(?:-\w+)?=={_NUMBER}"'
_TAG: Final = rf"newTag: {_NUMBER}$"
_IMAGE: Final = rf"\boncelog:{_NUMBER}"

PLACES: Final = (
    Place("protos/src/oncelogpb/__init__.py", _CONSTANT),
    Place("clients/python/src/oncelog/__init__.py", _CONSTANT),
    Place("services/oncelog_server/__init__.py", _CONSTANT),
    Place("spark/src/oncelog_spark/__init__.py", _CONSTANT),
    Place("clients/python/pyproject.toml", _PIN, 2),
    Place("pyproject.toml", _PIN, 2),
    Place("spark/pyproject.toml", _PIN, 3),
    Place("deploy/Dockerfile", _IMAGE),
    Place("deploy/k8s/overlays/dev/kustomization.yaml", _TAG),
    Place("deploy/k8s/overlays/production/kustomization.yaml", _TAG),
    Place("docs/kubernetes.md", _IMAGE, 3),
)


def found(place: Place) -> list[str]:
    """The versions that stand there."""
    text = (ROOT / place.path).read_text()
    return [match["version"] for match in _matches(place, text)]


def write(version: str) -> None:
    """Puts `version` everywhere. Raises ValueError for what is none."""
    if not FORM.fullmatch(version):
        raise ValueError(f"{version!r} is no version like 0.2.0 or 1.0.0rc1")
    for place in PLACES:
        path = ROOT / place.path
        text = path.read_text()
        for match in reversed(list(_matches(place, text))):
            low, high = match.span("version")
            text = text[:low] + version + text[high:]
        path.write_text(text)


def _matches(place: Place, text: str) -> Iterator[re.Match[str]]:
    return re.finditer(place.pattern, text, re.MULTILINE)


if __name__ == "__main__":
    try:
        write("".join(sys.argv[1:2]))
    except ValueError as error:
        sys.exit(f"{error}: make version TO=0.2.0")
