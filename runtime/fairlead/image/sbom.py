"""An image's bill of materials as CycloneDX JSON: the same packages give the same bytes.

The document is written here and not by a library, since it is a part of the image, whose bytes must
not depend on a library's version; the tests validate it with ``cyclonedx-python-lib``.
Source: CycloneDX 1.6 JSON schema; package URLs by the purl specification (deb, pypi, generic, oci).
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from fairlead.image.packages import Package, frameworks

SPECIFICATION = "1.6"
_UTC = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class Component:
    """One package of an image.

    Attributes:
        purl: its package URL; it names the component in the document too.
        sha256: of the file that it was installed from, hex; empty when that is not known.
        licence: as in :class:`fairlead.image.packages.Package`.
        properties: more about it, e.g. the index that it came from.
    """

    kind: str
    name: str
    version: str
    purl: str
    sha256: str = ""
    licence: str = ""
    spdx: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)


def deb_purl(
    name: str, version: str, architecture: str = "", distribution: str = "", suite: str = ""
) -> str:
    """
    >>> deb_purl("libstdc++6", "1:12.2", "amd64", "debian", "bookworm")
    'pkg:deb/debian/libstdc%2B%2B6@1:12.2?arch=amd64&distro=bookworm'
    """
    more = {"arch": architecture, "distro": suite}
    return _purl(f"deb/{_quoted(distribution or 'debian')}", name, version, more)


def pypi_purl(name: str, version: str) -> str:
    """
    >>> pypi_purl("Typing_Extensions", "4.15.0")
    'pkg:pypi/typing-extensions@4.15.0'
    """
    return _purl("pypi", re.sub(r"[-_.]+", "-", name).lower(), version)


def generic_purl(name: str, version: str, sha256: str = "") -> str:
    """A source archive that no index has."""
    return _purl("generic", name, version, {"checksum": f"sha256:{sha256}" if sha256 else ""})


def _purl(kind: str, name: str, version: str, more: Mapping[str, str] | None = None) -> str:
    qualifiers = "&".join(f"{k}={_quoted(v)}" for k, v in sorted((more or {}).items()) if v)
    return f"pkg:{kind}/{_quoted(name)}@{_quoted(version)}" + (
        f"?{qualifiers}" if qualifiers else ""
    )


def _quoted(text: str) -> str:
    return quote(text, safe=":~.-_")


def component_of(package: Package, distribution: str, suite: str) -> Component:
    """What is known of a package from the tree alone."""
    if package.kind == "deb":
        purl = deb_purl(package.name, package.version, package.architecture, distribution, suite)
    else:
        purl = pypi_purl(package.name, package.version)
    return Component(
        "library", package.name, package.version, purl, licence=package.licence, spdx=package.spdx
    )


def document(
    name: str,
    *,
    version: str,
    summary: str,
    components: Iterable[Component],
    identity: str,
    fairlead: str,
    epoch: int | None,
) -> bytes:
    """The document of the image called ``name``.

    Args:
        identity: what the serial number is made of, e.g. the digest of the lock.
        fairlead: the version that writes it.
        epoch: seconds since 1970; None leaves the time out.
    """
    unique = {component.purl: component for component in components}
    parts = [unique[purl] for purl in sorted(unique)]
    tool = {"type": "application", "name": "fairlead", "version": fairlead}
    bom: dict[str, Any] = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPECIFICATION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, f'fairlead {identity}')}",
        "version": 1,
        "metadata": {
            **({} if epoch is None else {"timestamp": time.strftime(_UTC, time.gmtime(epoch))}),
            "tools": {"components": [tool]},
            "component": {
                "type": "container",
                "bom-ref": "image",
                "name": name,
                **({"version": version} if version else {}),
                **({"description": summary} if summary else {}),
            },
        },
        "components": [_component(component) for component in parts],
        "dependencies": [{"ref": "image", "dependsOn": [c.purl for c in parts]}],
    }
    return json.dumps(bom, indent=1).encode() + b"\n"


def _component(component: Component) -> dict[str, Any]:
    kind = "framework" if frameworks({component.name: ""}) else component.kind
    entry: dict[str, Any] = {
        "type": kind,
        "bom-ref": component.purl,
        "name": component.name,
        "version": component.version,
    }
    if component.sha256:
        entry["hashes"] = [{"alg": "SHA-256", "content": component.sha256}]
    if component.licence:
        entry["licenses"] = [
            {"expression": component.licence}
            if component.spdx
            else {"license": {"name": component.licence}}
        ]
    entry["purl"] = component.purl
    if component.properties:
        entry["properties"] = [
            {"name": f"fairlead:{key}", "value": value}
            for key, value in sorted(component.properties.items())
        ]
    return entry
