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
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from fairlead import __version__
from fairlead.image.packages import Installed, Package, frameworks

SPECIFICATION = "1.6"
_UTC = "%Y-%m-%dT%H:%M:%SZ"


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
    return f"pkg:{kind}/{_quoted(name)}@{_quoted(version)}" + "?" * bool(qualifiers) + qualifiers


def _quoted(text: str) -> str:
    return quote(text, safe=":~.-_")


def component(
    package: Package,
    system: Installed,
    *,
    purl: str = "",
    sha256: str = "",
    kind: str = "library",
    properties: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """One package of an image as it stands in the document.

    Args:
        system: names the distribution of a .deb.
        purl: its package URL, if it is not that of its kind.
        sha256: of the file that it was installed from, hex; empty when that is not known.
        properties: more about it, e.g. the index that it came from.
    """
    name, version = package.name, package.version
    if not purl and package.kind == "deb":
        purl = deb_purl(name, version, package.architecture, system.distribution, system.suite)
    purl = purl or pypi_purl(name, version)
    entry: dict[str, Any] = {
        "type": "framework" if frameworks({name: ""}) else kind,
        "bom-ref": purl,
        "name": name,
        "version": version,
    }
    if sha256:
        entry["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    if licence := package.licence:
        spdx = {"expression": licence}
        entry["licenses"] = [spdx if package.spdx else {"license": {"name": licence}}]
    entry["purl"] = purl
    if properties:
        entry["properties"] = [
            {"name": f"fairlead:{key}", "value": value} for key, value in sorted(properties.items())
        ]
    return entry


def document(
    name: str,
    *,
    version: str,
    summary: str,
    components: Iterable[dict[str, Any]],
    identity: str,
    epoch: int | None,
) -> bytes:
    """The document of the image called ``name``.

    Args:
        components: as :func:`component` makes them.
        identity: what the serial number is made of, e.g. the digest of the lock.
        epoch: seconds since 1970; None leaves the time out.
    """
    unique = {part["purl"]: part for part in components}
    tool = {"type": "application", "name": "fairlead", "version": __version__}
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
        "components": [unique[purl] for purl in sorted(unique)],
        "dependencies": [{"ref": "image", "dependsOn": sorted(unique)}],
    }
    return json.dumps(bom, indent=1).encode() + b"\n"
