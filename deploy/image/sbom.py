"""`sbom.py FILE`: writes which distributions are installed beside this Python, and the Python, as an SBOM of CycloneDX 1.5 in JSON.

The same parts give the same bytes: there is no time of writing in it. It runs in the environment that it describes, without any library.
"""

import importlib.metadata
import json
import platform
import re
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path

OWN = "parley-autoscaler"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "parley.dev")


def normalised(name: str) -> str:
    """A name as PEP 503 compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def reference(name: str, version: str) -> str:
    return f"pkg:pypi/{normalised(name)}@{version}"


def component(found: importlib.metadata.Distribution) -> dict[str, object]:
    kind = "application" if normalised(found.name) == OWN else "library"
    url = reference(found.name, found.version)
    made: dict[str, object] = {
        "type": kind,
        "bom-ref": url,
        "name": found.name,
        "version": found.version,
        "purl": url,
    }
    metadata = found.metadata
    if expression := metadata.get("License-Expression"):
        made["licenses"] = [{"expression": expression}]
    return made


def document(installed: Iterable[importlib.metadata.Distribution]) -> dict[str, object]:
    """The SBOM. A part depends on what it names that is installed, for an extra or not."""
    parts = {normalised(each.name): each for each in installed}
    references = {name: reference(each.name, each.version) for name, each in parts.items()}
    components = {name: component(parts[name]) for name in sorted(parts)}
    own = components.pop(OWN)
    python = {
        "type": "platform",
        "bom-ref": f"pkg:generic/python@{platform.python_version()}",
        "name": "python",
        "version": platform.python_version(),
    }
    dependencies = []
    for name in sorted(parts):
        named = {normalised(match[0]) for each in parts[name].requires or () if (match := _NAME.match(each))}
        on = sorted(references[each] for each in named & parts.keys() - {name})
        dependencies.append({"ref": references[name], "dependsOn": on})
    body = {
        "metadata": {"component": own},
        "components": [*components.values(), python],
        "dependencies": dependencies,
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(body, sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        **body,
    }


if __name__ == "__main__":
    text = json.dumps(document(importlib.metadata.distributions()), indent=1) + "\n"
    Path(sys.argv[1]).write_text(text)
