"""The bill of materials of an image that is being built: from its lock, and from what is installed.

The lock knows where each package came from and its sha256; the tree knows licences, and what a base
image brought that the lock does not name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fairlead import __version__
from fairlead.image.packages import Installed, Package
from fairlead.image.sbom import component, document, generic_purl
from fairlead_build.recipe.inherit import project
from fairlead_build.recipe.load import LoadedRecipe
from fairlead_build.recipe.lock import Lock, SourceArchive, Wheel


def bill_of_materials(
    loaded: LoadedRecipe, lock: Lock, lock_sha256: str, wheel_sha256: str, installed: Installed
) -> bytes:
    """What an image is made of: its lock, fairlead itself, and what else is ``installed``."""
    return document(
        loaded.name,
        version=lock_sha256,
        summary=loaded.recipe.recipe.summary,
        components=_components(lock, wheel_sha256, installed),
        identity=f"{lock_sha256} {wheel_sha256}",
        epoch=lock.source_date_epoch,
    )


def _components(lock: Lock, wheel_sha256: str, installed: Installed) -> Iterator[dict[str, Any]]:
    packages = {_key(package): package for package in installed.packages}
    listed = set()
    for deb in lock.deb:
        package = Package("deb", deb.name, deb.version, deb.architecture)
        listed.add(_key(package))
        yield component(package, installed, sha256=deb.sha256, properties={"index": deb.index})
    wheels: list[Wheel | SourceArchive] = [w for w in lock.wheel if w.role in ("python", "mpi")]
    for item in [*wheels, *lock.source]:
        package = Package("wheel", item.name, item.version)
        listed.add(_key(package))
        licence = packages.get(_key(package), package)
        package = replace(package, licence=licence.licence, spdx=licence.spdx)
        properties, purl = {"index": item.index, "file": item.file}, ""
        if isinstance(item, SourceArchive):
            properties["built"] = "from source"
            if item.index == "URL":
                purl = generic_purl(item.name, item.version, item.sha256)
        yield component(package, installed, purl=purl, sha256=item.sha256, properties=properties)
    if wheel_sha256:
        own = Package("wheel", "fairlead", __version__, licence="Apache-2.0", spdx=True)
        yield component(own, installed, sha256=wheel_sha256, kind="application")
    for package in installed.packages:
        if _key(package) not in listed and project(package.name) != "fairlead":
            yield component(package, installed)


def _key(package: Package) -> tuple[str, str, str]:
    name = package.name if package.kind == "deb" else project(package.name)
    return package.kind, name, package.version
