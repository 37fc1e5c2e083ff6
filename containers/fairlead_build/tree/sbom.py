"""The bill of materials of an image that is being built: from its lock, and from what is installed.

The lock knows where each package came from and its sha256; the tree knows licences, and what a base
image brought that the lock does not name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fairlead import __version__
from fairlead.image.packages import Installed, Package
from fairlead.image.sbom import Component, component_of, deb_purl, document, generic_purl, pypi_purl
from fairlead_build.recipe.inherit import project
from fairlead_build.recipe.load import LoadedRecipe
from fairlead_build.recipe.lock import Lock, SourceArchive, Wheel


@dataclass(frozen=True)
class BillOfMaterials:
    """A CycloneDX document, and the number of its components."""

    text: bytes
    components: int


def bill_of_materials(
    loaded: LoadedRecipe, lock: Lock, lock_sha256: str, wheel_sha256: str, installed: Installed
) -> BillOfMaterials:
    """What an image is made of: its lock, fairlead itself, and what else is ``installed``."""
    components = {c.purl: c for c in _components(lock, wheel_sha256, installed)}
    text = document(
        loaded.name,
        version=lock_sha256,
        summary=loaded.recipe.recipe.summary,
        components=components.values(),
        identity=f"{lock_sha256} {wheel_sha256}",
        fairlead=__version__,
        epoch=lock.source_date_epoch,
    )
    return BillOfMaterials(text, len(components))


def _components(lock: Lock, wheel_sha256: str, installed: Installed) -> Iterator[Component]:
    distribution, suite = installed.distribution, installed.suite
    licences = {(p.kind, project(p.name), p.version): p for p in installed.packages}
    listed: set[tuple[str, str, str]] = set()

    def key_of(kind: str, name: str, version: str) -> tuple[str, str, str]:
        return kind, name if kind == "deb" else project(name), version

    def known(kind: str, name: str, version: str) -> Package:
        key = key_of(kind, name, version)
        listed.add(key)
        return licences.get(key, Package(kind, name, version))

    for deb in lock.deb:
        known("deb", deb.name, deb.version)
        purl = deb_purl(deb.name, deb.version, deb.architecture, distribution, suite)
        from_index = {"index": deb.index}
        yield Component("library", deb.name, deb.version, purl, deb.sha256, properties=from_index)
    items: list[Wheel | SourceArchive] = [w for w in lock.wheel if w.role in ("python", "mpi")]
    for item in [*items, *lock.source]:
        package = known("wheel", item.name, item.version)
        purl = pypi_purl(item.name, item.version)
        properties = {"index": item.index, "file": item.file}
        if isinstance(item, SourceArchive):
            properties["built"] = "from source"
            if item.index == "URL":
                purl = generic_purl(item.name, item.version, item.sha256)
        licence, spdx = package.licence, package.spdx
        yield Component(
            "library", item.name, item.version, purl, item.sha256, licence, spdx, properties
        )
    if wheel_sha256:
        purl = pypi_purl("fairlead", __version__)
        yield Component(
            "application", "fairlead", __version__, purl, wheel_sha256, "Apache-2.0", True
        )
    for package in installed.packages:
        key = key_of(package.kind, package.name, package.version)
        if key not in listed and project(package.name) != "fairlead":
            yield component_of(package, distribution, suite)
