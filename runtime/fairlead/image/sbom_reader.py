"""What ``inspect`` reports in addition to an image's facts: the digest of its tree, its bill of materials.

Images of fairlead's builder have a bill of materials in them; other images are scanned.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.paths import cache_dir
from fairlead.base.progress import Progress, Silent
from fairlead.image.contents import keep_tree, known_tree
from fairlead.image.mount import MATERIALS, Inspection, look, look_into
from fairlead.image.open import Image
from fairlead.image.sbom import component, document
from fairlead.image.sif import read_sif
from fairlead.image.tree_digest import scan_folder, tree_sha256


def tree_of(
    image: Image, environ: Mapping[str, str] = os.environ, progress: Progress | None = None
) -> str:
    """The digest of an image's tree (:mod:`fairlead.image.tree_digest`), by reading all of it, once.

    Raises:
        FairleadError: it cannot be looked into.
        OSError: a part of a folder cannot be read.
    """
    progress = progress or Silent()
    if image.format == "sandbox":
        with progress.stage(f"reading {Path(image.path).name}", unit="B") as stage:
            return tree_sha256(scan_folder(Path(image.path), stage.advance))
    facts = cache_dir(environ) / "facts"
    tree = known_tree(image.digest, facts)
    if not tree:
        with progress.stage(f"reading {Path(image.path).name}"):
            tree = _inspected(image, environ, whole=True).tree_sha256
        keep_tree(image.digest, tree, facts)
    return tree


def materials_of(image: Image, environ: Mapping[str, str] = os.environ) -> str:
    """An image's bill of materials as CycloneDX JSON: the one in the image, or one from a scan.

    Raises:
        FairleadError: the image cannot be read, or its bill of materials does not match its record.
    """
    inspected = _inspected(image, environ)
    recorded = image.record.get("sbom")
    expected = str(recorded.get("sha256", "")) if isinstance(recorded, dict) else ""
    if not inspected.materials:
        installed = inspected.installed
        return document(
            Path(image.path).name,
            version="",
            summary=f"Packages found in {image.facts.os or 'the image'}",
            components=[component(package, installed) for package in installed.packages],
            identity=image.digest or json.dumps(installed.versions(), sort_keys=True),
            epoch=None,
        ).decode()
    digest = hashlib.sha256(inspected.materials.encode()).hexdigest()
    if expected and digest != expected:
        raise fail(
            "sbom-changed", image=image, materials=MATERIALS, found=digest, expected=expected
        )
    return inspected.materials


def _inspected(image: Image, environ: Mapping[str, str], whole: bool = False) -> Inspection:
    path = Path(image.path)
    if image.format == "sandbox":
        return look_into(path, whole=whole)
    offset = read_sif(path).squashfs.offset if image.format == "sif" else 0
    return look(path, offset, environ, whole=whole)
