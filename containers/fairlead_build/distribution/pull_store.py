"""Which images were pulled, and IMAGE names that mean one: references, OCI layout folders, image archives.

``images/pulled/by-reference/HASH.json`` says what a reference meant when it was pulled. The runtime
asks :func:`find_image` through the entry point group ``fairlead.images``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fairlead.base import bounded_json, seals
from fairlead.base.errors import fail
from fairlead.base.paths import atomic_write, cache_dir
from fairlead.base.progress import Progress
from fairlead_build.cache.store import Cache, workspace
from fairlead_build.registry.reference import Reference, is_reference, parse_reference

SCHEMA_VERSION = 1
_ELSEWHERE = ("containers-storage", "docker-daemon", "dir")  # what skopeo and Apptainer read, too


@dataclass(frozen=True)
class PulledImage:
    """One pulled image.

    Attributes:
        reference: as it was asked for.
        digest: of its manifest, ``sha256:…``.
        path: the SIF.
        source: ``sif``, when that came from the registry; ``layers``, when it was made of them.
        meant: the digest that the reference itself stood for: the manifest's, or that of its index.
    """

    reference: str
    digest: str
    path: str
    sif_sha256: str
    bytes: int
    source: str
    meant: str = ""


def folder_of(cache: Cache) -> Path:
    return cache.root / "images" / "pulled"


def _record(cache: Cache, reference: Reference) -> Path:
    # A digest says all; a tag given with it may have moved since.
    name = str(reference.at(reference.digest) if reference.digest else reference)
    key = hashlib.sha256(name.encode()).hexdigest()
    return folder_of(cache) / "by-reference" / f"{key}.json"


def read_pulled(cache: Cache, reference: Reference) -> PulledImage | None:
    """What ``reference`` meant when it was last pulled; None when that is not here, whole."""
    pulled = last_pulled(cache, reference)
    try:
        whole = pulled is not None and Path(pulled.path).stat().st_size == pulled.bytes
    except (OSError, ValueError, TypeError):
        return None
    return pulled if whole else None


def last_pulled(cache: Cache, reference: Reference) -> PulledImage | None:
    """The same, whether or not its file is still here."""
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
        data = bounded_json.loads(_record(cache, reference).read_bytes())
        named = {f.name for f in fields(PulledImage)}
        return PulledImage(**{name: value for name, value in data.items() if name in named})
    return None


def write_pulled(cache: Cache, reference: Reference, image: PulledImage) -> None:
    """Makes ``reference`` mean ``image``."""
    with atomic_write(_record(cache, reference), "w") as out:
        head = {"schema": "fairlead/pulled-image", "version": SCHEMA_VERSION}
        json.dump({**head, **asdict(image)}, out, indent=2)
        out.write("\n")


def find_image(name: str, environ: Mapping[str, str], progress: Progress) -> Path | None:
    """The file of the IMAGE called ``name``, if it is a reference, an OCI layout or an image archive.

    Layouts and archives may be named as for skopeo and Apptainer: ``oci:FOLDER[:TAG]``, ``oci-archive:FILE[:TAG]``,
    ``docker-archive:FILE[:TAG]``.

    Raises:
        FairleadError: it is a reference, and was not pulled; a layout or archive that cannot be converted.
    """
    cache = Cache(cache_dir(environ))
    if is_reference(name):
        reference = parse_reference(name)
        pulled = read_pulled(cache, reference)
        if pulled:
            return Path(pulled.path)
        raise fail("not-pulled", reference=reference)
    from fairlead_build.registry.archive import ARCHIVES
    from fairlead_build.registry.layout import find_layout

    transport, _, rest = name.partition(":")
    if transport in _ELSEWHERE and rest and not cache.by_name(name).is_file():
        raise fail("image-elsewhere", name=name)
    if transport in ("oci", *ARCHIVES) and rest:
        name = rest
    if layout := find_layout(name, sure=transport == "oci" and bool(rest)):
        from fairlead_build.distribution.pull import converted

        return converted(layout[0], cache, progress, layout[1])
    return _archived(name, transport in ARCHIVES, cache, progress)


def _archived(name: str, sure: bool, cache: Cache, progress: Progress) -> Path | None:
    """The SIF of ``FILE[:TAG]``, made once while the file stays the same; None if it is not an archive.

    Args:
        sure: the name says that it is one.
    """
    from fairlead_build.registry.archive import find_archive, lay_out_archive

    archive = find_archive(name, sure=sure)
    if archive is None:
        return None
    file, tag = archive
    status = file.stat()
    identity = (
        file.resolve(),
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        tag,
    )
    key = hashlib.sha256(repr(identity).encode()).hexdigest()
    record = folder_of(cache) / "by-archive" / f"{key}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        made = Path(bounded_json.loads(record.read_bytes())["path"])
        if seals.holds(made):
            return made
    from fairlead_build.distribution.pull import converted

    cache.make()
    with workspace(cache.root / "work", "archive-") as work:
        lay_out_archive(file, tag, work / "layout", progress)
        made = converted(work / "layout", cache, progress)
    with atomic_write(record, "w") as out:
        json.dump({"path": str(made)}, out)
    return made
