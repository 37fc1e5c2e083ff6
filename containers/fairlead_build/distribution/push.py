"""``fairlead push``: an image to a registry, as OCI layers, with its SIF next to them.

The SIF's signature goes first, where it has one, then the SIF, under ``TAG-sif`` in the manner of
ORAS, then the layers: an image whose note names a SIF has it. What the registry has is not sent again; what another repository of it has is
mounted.

Source: OCI distribution specification 1.1, "Pushing"; the SIF's media types are those of
``apptainer push oras://``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.base.errors import FairleadError, fail
from fairlead.base.paths import atomic_write
from fairlead.base.progress import Progress
from fairlead.image.open import find
from fairlead.image.sif import is_sif, read_sif
from fairlead_build.base.digest import sha256_of
from fairlead_build.cache.store import Cache, holding, need_space, workspace
from fairlead_build.formats import oci, store
from fairlead_build.formats.images import ImageEntry, read_entry
from fairlead_build.formats.wrapping import wrapping_of
from fairlead_build.registry.archive import ARCHIVES, find_archive, lay_out_archive
from fairlead_build.registry.client import Advance, Client
from fairlead_build.registry.layout import (
    blob_of,
    find_layout,
    is_layout,
    layout_damaged,
    read_layout,
)
from fairlead_build.registry.manifest import (
    EMPTY,
    SIF_CONFIG,
    SIF_LAYER,
    TITLE,
    Descriptor,
    Manifest,
    artifact,
)
from fairlead_build.registry.reference import Reference, parse_reference
from fairlead_build.registry.signature_artifact import (
    manifest_of,
    signature_of,
    tag_of,
)

SIF_TAG = "-sif"
_LONGEST_TAG = 128


@dataclass(frozen=True)
class Source:
    """An image on this machine; ``layout`` and ``sif`` hold the same tree.

    Attributes:
        name: of the image in the layout, where there are several.
    """

    layout: Path | None
    sif: Path | None
    name: str = ""


@dataclass(frozen=True)
class Origin:
    """An image on this machine that can be pushed, before anything is made of it.

    Attributes:
        layers: whether its OCI layout is wanted too.
        entry: of an image that was built here.
        name: of the image in a layout or archive of several.
        archive: it is an archive, whose layers are laid out first.
    """

    image: str
    path: Path
    layers: bool
    entry: ImageEntry | None
    name: str = ""
    archive: bool = False


def find_source(image: str, layers: bool, cache: Cache) -> Origin:
    """What IMAGE is.

    Args:
        layers: whether the OCI layout is wanted too.
    Raises:
        FairleadError: there is no such image, or it cannot be pushed.
    """
    entry = read_entry(cache, image)
    if layout := None if entry else find_layout(image.removeprefix("oci:")):
        read_layout(layout[0], tag=layout[1])
        return Origin(image, layout[0], True, None, layout[1])
    transport, _, rest = image.partition(":")
    sure = transport in ARCHIVES and bool(rest)
    if archive := None if entry else find_archive(rest if sure else image, sure=sure):
        return Origin(image, archive[0], True, None, archive[1], archive=True)
    path = Path(entry.path) if entry else find(image)
    if path.is_dir() or not is_sif(path):
        raise fail("push-format-cannot-pushed", image=image, path=path)
    if layers and read_sif(path).document("image.json") is None:
        raise fail("push-format-no-layers", image=image, path=path)
    return Origin(image, path, layers, entry)


def reach(text: str, source: Origin, *, insecure: bool = False, dry_run: bool = False) -> Client:
    """The registry of the reference ``text``, once it has answered; layers take minutes to make.

    Raises:
        FairleadError: the image cannot go there, the registry cannot be reached, or it forbids to push.
    """
    reference = parse_reference(text)
    _check(reference, source)
    client = Client(reference, insecure=insecure)
    if dry_run:
        client.has_manifest(reference.tag)
    else:
        client.check_push()
    return client


@contextmanager
def source_of(source: Origin, cache: Cache, progress: Progress) -> Iterator[Source]:
    """What there is to push of an image: its layers are made if they are wanted.

    Raises:
        FairleadError: there is no room, or the image is damaged.
    """
    path, entry = source.path, source.entry
    if is_layout(path):
        yield Source(path, None, source.name)
        return
    if source.archive:
        with workspace(cache.root / "work", "archive-") as work:
            lay_out_archive(path, source.name, work / "layout", progress)
            yield Source(work / "layout", None)
        return
    if not source.layers:
        yield Source(None, path)
        return
    if entry:
        again = f"is building `{source.image}` too"
        with holding(cache, f"recipe-{entry.recipe}", progress, again):
            layout = store.make(oci.FORMAT, entry, cache, progress)
        yield Source(layout, path)
        return
    size = path.stat().st_size
    need_space(cache.root, 2 * size, "the layers", "XDG_CACHE_HOME")
    with workspace(cache.root / "work", "layers-") as work:
        digest = sha256_of(path)
        layout = work / "image.oci"
        layout.mkdir()
        with progress.stage("write the OCI layers", unit="B") as stage:
            oci.write_layout(layout, path, wrapping_of(path, digest), stage.advance)
        yield Source(layout, path)


@dataclass(frozen=True)
class Part:
    """One blob of what is pushed.

    Attributes:
        what: in a word: a layer, the configuration, the SIF.
        state: ``there``, ``mounted`` or ``sent``; of a dry run ``there`` or ``to send``.
    """

    what: str
    digest: str
    bytes: int
    state: str


@dataclass(frozen=True)
class PushResult:
    """What was pushed.

    Attributes:
        reference: with the tag.
        digest: of the image's manifest; ``sha256:…``.
        sif_reference: where the SIF is; empty when none was pushed.
        signature_reference: where its signature is; empty when it has none.
        before: the digest that the tag meant until now; empty when it is new.
    """

    reference: str
    digest: str
    sif_reference: str
    sif_digest: str
    signature_reference: str
    parts: tuple[Part, ...]
    before: str

    @property
    def bytes_sent(self) -> int:
        return sum(part.bytes for part in self.parts if part.state == "sent")


@dataclass(frozen=True)
class _Blob:
    """A blob on this machine: a file, or a few bytes."""

    what: str
    item: Descriptor
    content: Path | bytes


@dataclass(frozen=True)
class _Upload:
    """A manifest with its blobs, for one tag."""

    manifest: Manifest
    blobs: tuple[_Blob, ...]
    tag: str


def push(
    client: Client, source: Source, cache: Cache, progress: Progress, *, dry_run: bool = False
) -> PushResult:
    """Pushes an image to the registry that :func:`reach` has reached.

    Args:
        source: the image; of it ``oras://`` references take the SIF only.
        dry_run: only asks what is there.
    Raises:
        FairleadError: refused or cut; what was sent is there when the command is run again.
    """
    reference = client.reference
    layout, sif = source.layout, source.sif
    sifs: list[_Upload] = []
    signatures: list[_Upload] = []
    if sif:
        tag = reference.tag + ("" if reference.scheme == "oras" else SIF_TAG)
        sifs = [_of_sif(sif, tag, reference, progress)]
        signatures = _of_signature(sif, sifs[0])
    layers = reference.scheme == "docker"
    images = [_of_layout(layout, source.name, reference.tag)] if layout and layers else []
    # In this order, so that an image is never seen before its signature.
    uploads = [*signatures, *sifs, *images]
    parts: list[Part] = []
    before = ""
    total = sum(blob.item.size for upload in uploads for blob in upload.blobs)
    title = f"push to {reference.host}" if not dry_run else f"ask {reference.host}"
    with progress.stage(title, total, "B") as stage:
        for upload in uploads:
            before = client.has_manifest(upload.tag)
            unchanged = before == upload.manifest.digest
            for blob in upload.blobs:
                stage.note(blob.what)
                if unchanged:
                    stage.advance(blob.item.size)
                    state = "there"
                elif dry_run:
                    size = client.blob_size(blob.item.digest, pushing=True)
                    state = "to send" if size is None else "there"
                else:
                    state = _send(client, blob, cache, stage.advance)
                parts.append(Part(blob.what, blob.item.digest, blob.item.size, state))
            if not unchanged and not dry_run:
                data, kind = upload.manifest.data, upload.manifest.media_type
                client.push_manifest(data, kind, upload.tag)
        sent = sum(part.bytes for part in parts if part.state in ("sent", "to send"))
        verb = "to send" if dry_run else "sent"
        stage.result(f"{sent / 1e6:.1f} MB {verb}, {(total - sent) / 1e6:.1f} MB are there already")
    sif_place, signature_place = (
        str(replace(reference, scheme="oras", tag=those[0].tag)) if those else ""
        for those in (sifs, signatures)
    )
    digest, sif_digest = uploads[-1].manifest.digest, sifs[0].manifest.digest if sifs else ""
    return PushResult(
        str(reference), digest, sif_place, sif_digest, signature_place, tuple(parts), before
    )


def _check(reference: Reference, source: Origin) -> None:
    why, sif = "", not (source.archive or is_layout(source.path))
    if reference.digest:
        why = "a digest is made by what is pushed, and cannot be chosen"
    elif reference.scheme == "oras" and not sif:
        why = "oras:// takes a SIF, and this image has none"
    elif sif and source.layers and len(reference.tag + SIF_TAG) > _LONGEST_TAG:
        why = f"the SIF's tag, {SIF_TAG} behind this one, would be longer than {_LONGEST_TAG}"
    if why:
        raise fail("reference-nothing-pushed", reference=reference, why=why)


def _of_layout(folder: Path, name: str, tag: str) -> _Upload:
    manifest = read_layout(folder, tag=name)
    blobs = []
    for number, item in enumerate((*manifest.layers, manifest.config)):
        path = blob_of(folder, item)
        size = path.stat().st_size if path.is_file() else -1
        if size != item.size:
            has = "it is missing" if size < 0 else f"it has {size} bytes"
            raise layout_damaged(path, f"{has}, the manifest says {item.size}")
        last = number == len(manifest.layers)
        blobs.append(_Blob("configuration" if last else f"layer {number + 1}", item, path))
    return _Upload(manifest, tuple({b.item.digest: b for b in blobs}.values()), tag)


def _of_sif(path: Path, tag: str, reference: Reference, progress: Progress) -> _Upload:
    size = path.stat().st_size
    with progress.stage("hash the SIF", size, "B") as stage:
        digest = sha256_of(path, stage.advance)
    # The name that `oras pull` would give the file; not that of the file here, which is a hash.
    notes = {TITLE: f"{reference.repository.rpartition('/')[2]}.sif"}
    item = Descriptor(SIF_LAYER, f"sha256:{digest}", size, notes)
    manifest = artifact(item, SIF_CONFIG)
    label = _Blob("SIF's label", manifest.config, EMPTY)
    return _Upload(manifest, (_Blob("SIF", item, path), label), tag)


def _of_signature(sif: Path, uploaded: _Upload) -> list[_Upload]:
    """The signature of a SIF, if it is signed."""
    (item,) = uploaded.manifest.layers
    text = signature_of(sif, item.hex)
    if not text:
        return []
    manifest = manifest_of(text, item.annotations[TITLE])
    (layer,) = manifest.layers
    blobs = (_Blob("signature", layer, text), _Blob("signature's label", manifest.config, EMPTY))
    return [_Upload(manifest, blobs, tag_of(item.hex))]


def _send(client: Client, blob: _Blob, cache: Cache, advance: Advance) -> str:
    host, repository = client.reference.host, client.reference.repository
    content = blob.content
    if isinstance(content, bytes):
        return client.push_blob(content, blob.item.digest, advance)
    # Which repository of the host was last given the blob; it may be wrong, and only saves time.
    note = cache.root / "registries" / host / blob.item.hex
    try:
        before = note.read_text("utf-8").strip()
    except (OSError, ValueError):
        before = ""
    mount_from = before if before != repository else ""
    try:
        state = client.push_blob(content, blob.item.digest, advance, mount_from)
    except FairleadError as exc:
        if not mount_from or exc.findings[0].check not in ("registry-denied", "registry-login"):
            raise
        # The right to read that repository is lacking.
        state = client.push_blob(content, blob.item.digest, advance)
    if before != repository:
        with atomic_write(note, "w") as out:
            out.write(f"{repository}\n")
    return state
