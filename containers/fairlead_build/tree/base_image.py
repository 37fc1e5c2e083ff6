"""The image that a recipe with ``base.image`` starts from: fetched once, and read in place.

It is kept as an OCI layout under ``bases/`` of the cache. What it says of itself is read from its
layers without unpacking them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from fairlead.base.errors import FairleadError, fail
from fairlead.base.progress import Progress
from fairlead.image.packages import installed
from fairlead_build.cache.store import Cache, holding, workspace
from fairlead_build.formats.convert import open_layout
from fairlead_build.recipe.lock import upstream
from fairlead_build.registry.client import Client
from fairlead_build.registry.layout import (
    fetch_layout,
    is_layout,
    lay_out,
    manifest_for,
    read_layout,
)
from fairlead_build.registry.manifest import (
    OCI_MANIFEST,
    Descriptor,
    Manifest,
    digest_of,
    read_document,
)
from fairlead_build.registry.reference import Reference, parse_reference
from fairlead_build.resolve.archive import Kept, blob, bring, rotten
from fairlead_build.squashfs.oci_layers import read_files, read_layers

_RELEASE = ("etc/os-release", "usr/lib/os-release")
_STATUS = "var/lib/dpkg/status"
# Images without a shell of their own keep a file a package instead.
_PARTS = "var/lib/dpkg/status.d"
_KNOWN: dict[str, Literal["debian", "ubuntu"]] = {"debian": "debian", "ubuntu": "ubuntu"}


@dataclass(frozen=True)
class BaseImage:
    """What a lock must know of a base.

    Attributes:
        digest: of the manifest for one architecture, also where the reference means several.
        dpkg_status: the text of dpkg's database of installed packages.
        python: of the distribution, ``3.11``; empty when it has none.
    """

    digest: str
    distribution: Literal["debian", "ubuntu"]
    suite: str
    dpkg_status: str
    glibc: str
    python: str


def open_base(image: str, cache: Cache, progress: Progress) -> BaseImage:
    """Asks the registry what ``image`` means today, fetches it, and reads it.

    Args:
        image: ``docker://…``; a digest in it is kept to.
    Raises:
        FairleadError: it cannot be fetched, or its distribution is unknown.
    """
    client, manifest = _asked(parse_reference(image), progress)
    layout = _fetched(client, manifest, cache, progress)
    return _read(image, manifest.digest, layout, cache, progress)


def _asked(reference: Reference, progress: Progress) -> tuple[Client, Manifest]:
    client = Client(reference)
    with progress.stage(f"ask {reference.host}"):
        return client, manifest_for(client)[0]


def base_layout(
    image: str, digest: str, cache: Cache, progress: Progress, again: str, relock: str
) -> Path:
    """The OCI layout of a locked base: from the cache, from the archive, else from the registry.

    Args:
        again, relock: the commands that build and that lock again.
    Raises:
        FairleadError: the registry has no image of this digest any more, or cannot be asked; or
            what the archive has is damaged.
    """
    kept = cache.root / "bases" / digest.partition(":")[2]
    if is_layout(kept) and read_layout(kept).digest == digest:
        return kept
    if (archived := _archived(image, digest, cache, progress)) is not None:
        return archived
    reference = parse_reference(image).at(digest)
    try:
        client, manifest = _asked(reference, progress)
    except FairleadError as exc:
        if exc.findings[0].check != "registry-missing":
            raise
        shown, image = str(reference)[:300], image[:200]
        raise fail("base-gone", reference=shown, image=image, again=again, relock=relock) from None
    return _fetched(client, manifest, cache, progress)


def base_files(image: str, manifest: Manifest) -> tuple[Kept, ...]:
    """What an archive keeps of a base; its manifest comes first."""
    own = Descriptor(manifest.media_type, manifest.digest, len(manifest.data))
    roles = {own.digest: "manifest", manifest.config.digest: "config"}
    return tuple(
        Kept(i.hex, i.size, roles.get(i.digest, "layer"), image, manifest.digest, "registry")
        for i in (own, *manifest.blobs)
    )


def _archived(image: str, digest: str, cache: Cache, progress: Progress) -> Path | None:
    """The base's layout, made of what the archive has; None when it lacks a part."""
    hexadecimal = digest.partition(":")[2]
    if cache.archive is None or not (path := blob(cache.archive, hexadecimal)).is_file():
        return None
    data = path.read_bytes()
    if digest_of(data) != digest:
        raise rotten(f"{image} {digest}", path, digest_of(data))
    manifest = read_document(data, OCI_MANIFEST, str(path))
    if not isinstance(manifest, Manifest):
        return None  # a base is locked by the digest of one image
    cache.make()
    bring(base_files(image, manifest), cache, progress)
    if not all(cache.blob(item.hex).is_file() for item in manifest.blobs):
        return None
    return _laid(cache, digest, progress, lambda folder: lay_out(manifest, folder, cache))


def _fetched(client: Client, manifest: Manifest, cache: Cache, progress: Progress) -> Path:
    cache.make()
    fetch = partial(fetch_layout, client, manifest, cache=cache, progress=progress)
    return _laid(cache, manifest.digest, progress, fetch)


def _laid(cache: Cache, digest: str, progress: Progress, make: Callable[[Path], None]) -> Path:
    """The base's folder in the cache, filled by ``make`` unless it exists."""
    kept = cache.root / "bases" / digest.partition(":")[2]
    kept.parent.mkdir(exist_ok=True)
    with (
        holding(cache, f"base-{kept.name[:16]}", progress, "fetches it too"),
        workspace(cache.root / "work", "base-") as work,
    ):
        if not is_layout(kept):
            make(work / "layout")
            (work / "layout").replace(kept)
    return kept


def _read(image: str, digest: str, layout: Path, cache: Cache, progress: Progress) -> BaseImage:
    _, layers, packed = open_layout(layout)
    with (
        progress.stage("read the base image", packed, "B") as stage,
        workspace(cache.root / "work", "base-root-") as root,
    ):
        merged = read_layers(layers, cache, stage.advance)
        files = read_files(merged, (*_RELEASE, _STATUS), cache)
        if _RELEASE[0] not in files:
            files[_RELEASE[0]] = files.get(_RELEASE[1], b"")
        for name, body in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(body)
        contents = installed(root)
        versions = contents.versions()["deb"]
        distribution = _KNOWN.get(contents.distribution)
        if distribution is None or not contents.suite:
            ident = contents.distribution or "nothing: no /etc/os-release"
            raise fail("base-distribution-other", image=image[:200], ident=ident[:80])
        if "libc6" not in versions:
            whole = "whole " if merged.tree.find(_PARTS) else ""
            raise fail("base-distribution-no-dpkg", image=image[:200], whole=whole, status=_STATUS)
        stage.result(f"{distribution} {contents.suite}, {len(versions)} packages")
    python = re.match(r"(?:\d+:)?(3\.\d+)", versions.get("python3-minimal", ""))
    return BaseImage(
        digest=digest,
        distribution=distribution,
        suite=contents.suite,
        dpkg_status=files[_STATUS].decode("utf-8", "replace"),
        glibc=upstream(versions["libc6"]),
        python=python[1] if python else "",
    )
