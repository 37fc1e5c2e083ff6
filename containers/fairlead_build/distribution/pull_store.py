"""Which images were pulled, and IMAGE names that mean one: references and OCI layout folders.

``images/pulled/by-reference/HASH.json`` says what a reference meant when it was pulled. The runtime
asks :func:`find_image` through the entry point group ``fairlead.images``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.errors import fail
from fairlead.base.paths import atomic_write, cache_dir
from fairlead.base.progress import Progress
from fairlead_build.cache.store import Cache
from fairlead_build.registry.reference import Reference, is_reference, parse_reference

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class PulledImage:
    """One pulled image.

    Attributes:
        reference: as it was asked for.
        digest: of its manifest, ``sha256:…``.
        path: the SIF.
        source: ``sif``, when that came from the registry; ``layers``, when it was made of them.
    """

    reference: str
    digest: str
    path: str
    sif_sha256: str
    bytes: int
    source: str


def folder_of(cache: Cache) -> Path:
    return cache.root / "images" / "pulled"


def _record(cache: Cache, reference: Reference) -> Path:
    # A digest says all; a tag given with it may have moved since.
    name = str(reference.at(reference.digest) if reference.digest else reference)
    key = hashlib.sha256(name.encode()).hexdigest()
    return folder_of(cache) / "by-reference" / f"{key}.json"


def read_pulled(cache: Cache, reference: Reference) -> PulledImage | None:
    """What ``reference`` meant when it was last pulled; None when that is not here, whole."""
    try:
        data = bounded_json.loads(_record(cache, reference).read_bytes())
        pulled = PulledImage(**{f.name: data[f.name] for f in fields(PulledImage)})
        whole = Path(pulled.path).stat().st_size == pulled.bytes
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pulled if whole else None


def write_pulled(cache: Cache, reference: Reference, image: PulledImage) -> None:
    """Makes ``reference`` mean ``image``."""
    with atomic_write(_record(cache, reference), "w") as out:
        head = {"schema": "fairlead/pulled-image", "version": SCHEMA_VERSION}
        json.dump({**head, **asdict(image)}, out, indent=2)
        out.write("\n")


def find_image(name: str, environ: Mapping[str, str], progress: Progress) -> Path | None:
    """The file of the IMAGE called ``name``, if it is a reference or an OCI layout.

    Raises:
        FairleadError: it is a reference, and was not pulled; a layout that cannot be converted.
    """
    cache = Cache(cache_dir(environ))
    if is_reference(name):
        reference = parse_reference(name)
        pulled = read_pulled(cache, reference)
        if pulled:
            return Path(pulled.path)
        raise fail("not-pulled", reference=reference)
    from fairlead_build.registry.layout import is_layout

    folder = Path(name)
    if not is_layout(folder):
        return None
    from fairlead_build.distribution.pull import converted

    return converted(folder, cache, progress)
