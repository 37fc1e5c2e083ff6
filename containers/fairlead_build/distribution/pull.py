"""``fairlead pull``: an image from a registry to a SIF on this machine.

An image that fairlead pushed comes as the very SIF that was built; any other is made into one from
its layers. What a cut or killed pull has brought is used by the next one.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.base import bounded_json, seals
from fairlead.base.errors import FairleadError, fail
from fairlead.base.progress import Progress, Silent
from fairlead.image.sif import read_sif
from fairlead_build.base.digest import sha256_of
from fairlead_build.base.platform import architecture
from fairlead_build.base.proc import no_space
from fairlead_build.cache.store import Cache, holding, need_space, publish, workspace
from fairlead_build.distribution.pull_store import (
    PulledImage,
    folder_of,
    last_pulled,
    read_pulled,
    write_pulled,
)
from fairlead_build.formats.convert import from_layout
from fairlead_build.formats.images import check_target, file_in, hand_out_copy
from fairlead_build.registry.client import Client
from fairlead_build.registry.download import download, partial_of
from fairlead_build.registry.layout import (
    GOARCH,
    fetch_layout,
    manifest_for,
    no_platform,
    read_layout,
)
from fairlead_build.registry.manifest import SIF_LAYER, Descriptor, Manifest
from fairlead_build.registry.problems import plain
from fairlead_build.registry.reference import Reference, is_digest, parse_reference
from fairlead_build.registry.signature_artifact import fetch_signature

SIF_NOTE = "org.fairlead.sif.sha256"


@dataclass(frozen=True)
class PullResult:
    """What a pull fetched, or would fetch.

    Attributes:
        image: None after a dry run of what is not here.
        cached: nothing had to be transferred.
        source: ``sif`` or ``layers``.
        to_transfer: bytes that are not here yet (dry run), or that were not before.
        output: the user's own copy.
        signed: a signature came with it; it is not verified yet.
        digest_before: of the manifest that the reference meant when it was last pulled here; None if it was not.
        moved: its tag has meant another image then.
    """

    reference: str
    digest: str
    image: PulledImage | None
    cached: bool
    source: str
    to_transfer: int
    output: Path | None
    signed: bool = False
    digest_before: str | None = None
    moved: bool = False


@dataclass(frozen=True)
class PullOptions:
    """How to pull.

    Attributes:
        output: a file or folder that gets a copy.
        arch: of the variant wanted; empty for this machine's.
        layers: make the SIF from the layers, even where one lies next to them.
        insecure: plain HTTP is allowed where the host speaks no TLS.
    """

    output: Path | None = None
    arch: str = ""
    layers: bool = False
    insecure: bool = False
    dry_run: bool = False


def pull(
    text: str,
    options: PullOptions | None = None,
    *,
    cache: Cache | None = None,
    progress: Progress | None = None,
    client: Client | None = None,
) -> PullResult:
    """Pulls the image that the reference ``text`` means.

    Args:
        client: to ask instead of a new one.
    Raises:
        FairleadError: it cannot be fetched, or is for other machines; what has come is kept.
    """
    options = options or PullOptions()
    reference = parse_reference(text)
    cache, progress = cache or Cache.default(), progress or Silent()
    client = client or Client(reference, insecure=options.insecure)
    with progress.stage(f"ask {reference.host}"):
        manifest, asked = manifest_for(client, options.arch)
        item = None if options.layers else _sif(client, manifest)
        if not manifest.sif:
            _check_platform(client, manifest, options.arch or architecture())
    target = _target(cache, manifest, item)
    if options.output:
        bytes_known = item.size if item else 0
        check_target(file_in(options.output, _file_name(reference), ".sif"), bytes_known)
    before = None if reference.digest else last_pulled(cache, reference)
    moved = before is not None and (before.meant or before.digest) not in (asked, manifest.digest)
    known = read_pulled(cache, reference.at(manifest.digest))
    known = known if known and known.path == str(target) else None
    expected = item.hex if item else known.sif_sha256 if known else ""
    cached = target.is_file() and _sha256(target, progress) == expected
    result = PullResult(
        str(reference), manifest.digest, known if cached else None, cached,
        "sif" if item else "layers", 0 if cached else _missing(cache, manifest, item), None,
        digest_before=before.digest if before else None, moved=moved,
    )  # fmt: skip
    if options.dry_run:
        return result
    if not cached:
        _fetch(client, manifest, item, target, cache, progress)
    image = PulledImage(
        reference=str(reference),
        digest=manifest.digest,
        path=str(target),
        sif_sha256=item.hex if item else _sha256(target, progress),
        bytes=target.stat().st_size,
        source=result.source,
        meant=asked,
    )
    signed = item is not None and fetch_signature(client, item.hex, target)
    # The tag last: when it means this image, everything else does.
    for digest in dict.fromkeys((manifest.digest, asked)):
        write_pulled(cache, reference.at(digest), image)
    if not reference.digest:
        write_pulled(cache, reference, image)
    output = options.output
    copy = hand_out_copy(target, output, ".sif", _file_name(reference)) if output else None
    return replace(result, image=image, output=copy, signed=signed)


def _fetch(
    client: Client,
    manifest: Manifest,
    item: Descriptor | None,
    target: Path,
    cache: Cache,
    progress: Progress,
) -> None:
    """The SIF ``item``, or without one a SIF made from the layers."""
    cache.make()
    target.unlink(missing_ok=True)  # it has changed on disk, or its digest is unknown
    try:
        if item:
            _fetch_sif(client, item, target, cache, progress)
        else:
            with workspace(cache.root / "work", "layout-") as work:
                fetch_layout(client, manifest, work / "layout", cache, progress)
                _convert(work / "layout", manifest, target, cache, progress)
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_space("pull the image", cache.root) from None
        raise


def converted(folder: Path, cache: Cache, progress: Progress, tag: str = "") -> Path:
    """The SIF of an OCI layout on this machine; made once, and again when it has changed.

    Args:
        tag: the name of one of several images in it.
    Raises:
        FairleadError: it is damaged, hostile, or for other machines.
    """
    manifest = read_layout(folder, tag=tag)
    target = _target(cache, manifest, None)
    if not seals.holds(target):
        _convert(folder, manifest, target, cache, progress)
    return target


def _sif(client: Client, manifest: Manifest) -> Descriptor | None:
    """The SIF of the image: its only layer, or the one its builder pushed with it."""
    if manifest.sif:
        return manifest.sif
    noted = manifest.annotations.get(SIF_NOTE, "")
    if not noted:
        return None
    digest = f"sha256:{noted}"
    size = client.blob_size(digest) if is_digest(digest) else None
    if size is None:
        raise fail(
            "sif-missing", reference=client.reference, sif_note=SIF_NOTE, noted=plain(noted)[:80]
        )
    return Descriptor(SIF_LAYER, digest, size)


def _check_platform(client: Client, manifest: Manifest, arch: str) -> None:
    try:
        config = bounded_json.loads(client.small_blob(manifest.config))
        name = str(config.get("architecture", arch))
        platform = (str(config.get("os", "linux")), GOARCH.get(name, name))
    except (ValueError, AttributeError, RecursionError):
        raise fail(
            "manifest-image-no-configuration",
            reference=client.reference,
            digest=manifest.config.digest,
            media_type=plain(manifest.config.media_type),
        ) from None
    if platform != ("linux", arch):
        raise no_platform(str(client.reference), arch, [plain("/".join(platform))])


def _target(cache: Cache, manifest: Manifest, item: Descriptor | None) -> Path:
    name = item.hex if item else f"layers-{manifest.digest.partition(':')[2]}"
    return folder_of(cache) / f"{name}.sif"


def _missing(cache: Cache, manifest: Manifest, item: Descriptor | None) -> int:
    wanted = [item] if item else [manifest.config, *manifest.layers]
    missing = sum(blob.size for blob in wanted)
    for blob in wanted:
        if cache.blob(blob.hex).is_file():
            missing -= blob.size
        elif partial_of(cache, blob).is_file():
            missing -= min(partial_of(cache, blob).stat().st_size, blob.size)
    return missing


def _fetch_sif(
    client: Client, item: Descriptor, target: Path, cache: Cache, progress: Progress
) -> None:
    partial = partial_of(cache, item)
    have = partial.stat().st_size if partial.is_file() else 0
    need_space(
        cache.root, max(item.size - have, 0), f"pulling {client.reference}", "XDG_CACHE_HOME"
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with progress.stage("pull the SIF", item.size, "B") as stage:
        download(client, item, target, cache, stage.advance, progress)
        again = f", {have / 1e6:.1f} MB of it from an earlier try" if have else ""
        stage.result(f"{item.size / 1e6:.1f} MB{again}")
    try:
        read_sif(target)
    except FairleadError:
        target.unlink()
        raise


def _convert(
    layout: Path, manifest: Manifest, target: Path, cache: Cache, progress: Progress
) -> None:
    cache.make()
    name = f"convert-{manifest.digest.partition(':')[2][:16]}"
    with (
        holding(cache, name, progress, "converts it too"),
        workspace(cache.root / "work", "convert-") as work,
    ):
        if not seals.holds(target):
            from_layout(layout, work / "image.sif", progress, manifest)
            publish(work / "image.sif", target)
            seals.note(target)


def _sha256(path: Path, progress: Progress) -> str:
    with progress.stage("check what is here", path.stat().st_size, "B") as stage:
        return sha256_of(path, stage.advance)


def _file_name(reference: Reference) -> str:
    last = reference.repository.rpartition("/")[2]
    return f"{last}-{reference.tag}" if reference.tag not in ("", "latest") else last
