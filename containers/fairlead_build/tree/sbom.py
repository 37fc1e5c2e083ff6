"""The bill of materials of an image that is being built: from its lock, and from what is installed.

The lock knows where each package came from and its sha256; the tree knows licences, and what a base
image brought that the lock does not name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fairlead import __version__
from fairlead.image.packages import Installed, Package
from fairlead.image.sbom import (
    Component,
    component_of,
    deb_purl,
    document,
    generic_purl,
    pypi_purl,
)
from fairlead_build.recipe.inherit import project
from fairlead_build.recipe.load import LoadedRecipe
from fairlead_build.recipe.lock import Lock


@dataclass(frozen=True)
class BillOfMaterials:
    """A CycloneDX document, and the number of its components."""

    text: bytes
    components: int


def bill_of_materials(
    loaded: LoadedRecipe, lock: Lock, lock_sha256: str, wheel_sha256: str, installed: Installed
) -> BillOfMaterials:
    """What an image is made of: its lock, fairlead itself, and what is ``installed`` besides."""
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

    def known(kind: str, name: str, version: str) -> Package:
        key = (kind, project(name) if kind == "wheel" else name, version)
        listed.add(key)
        return licences.get(key, Package(kind, name, version))

    for deb in lock.deb:
        known("deb", deb.name, deb.version)
        purl = deb_purl(deb.name, deb.version, deb.architecture, distribution, suite)
        from_index = {"index": deb.index}
        yield Component("library", deb.name, deb.version, purl, deb.sha256, properties=from_index)
    for wheel in lock.wheel:
        if wheel.role in ("python", "mpi"):
            package = known("wheel", wheel.name, wheel.version)
            yield Component(
                "library",
                wheel.name,
                wheel.version,
                pypi_purl(wheel.name, wheel.version),
                wheel.sha256,
                package.licence,
                package.spdx,
                {"index": wheel.index, "file": wheel.file},
            )
    for source in lock.source:
        package = known("wheel", source.name, source.version)
        purl = (
            pypi_purl(source.name, source.version)
            if source.index != "URL"
            else generic_purl(source.name, source.version, source.sha256)
        )
        yield Component(
            "library",
            source.name,
            source.version,
            purl,
            source.sha256,
            package.licence,
            package.spdx,
            {"index": source.index, "file": source.file, "built": "from source"},
        )
    if wheel_sha256:
        purl = pypi_purl("fairlead", __version__)
        yield Component(
            "application", "fairlead", __version__, purl, wheel_sha256, "Apache-2.0", True
        )
    for package in installed.packages:
        key = (package.kind, project(package.name), package.version)
        if package.kind == "deb":
            key = (package.kind, package.name, package.version)
        if key not in listed and project(package.name) != "fairlead":
            yield component_of(package, distribution, suite)
