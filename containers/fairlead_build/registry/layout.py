"""OCI image layouts: which image is in one, and one filled from a registry.

Source: OCI image specification 1.1, image-layout.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fairlead.base.errors import FairleadError, fail
from fairlead.base.progress import Progress
from fairlead_build.base.platform import architecture
from fairlead_build.cache.store import Cache, need_space
from fairlead_build.registry.client import Client
from fairlead_build.registry.download import download
from fairlead_build.registry.manifest import (
    MOST_BYTES,
    OCI_INDEX,
    Descriptor,
    Index,
    Manifest,
    read_document,
)
from fairlead_build.registry.problems import plain

# As containerd takes what some tools write instead of Go's names.
GOARCH = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64"}
_DEEPEST = 3  # indexes within indexes; one is usual
NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_IMAGE_CONFIGS = (
    "",
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
)


def is_layout(folder: Path) -> bool:
    """Whether ``folder`` is an OCI image layout, by its two files."""
    names = ("oci-layout", "index.json")
    return all(os.path.isfile(folder / name) for name in names)  # noqa: PTH113 - of a name that is too long, too


def find_layout(name: str, *, sure: bool = False) -> tuple[Path, str] | None:
    """The folder and the tag of the layout called ``FOLDER[:TAG]``; None if it is not one.

    Args:
        sure: ``name`` is meant as that of a layout.
    Raises:
        FairleadError: exit code 2; it is meant, and is none.
    """
    stem, _, tag = name.partition(":")
    for folder, chosen in ((Path(name), ""), (Path(stem), tag)):
        if is_layout(folder):
            return folder, chosen
    if sure:
        raise fail("layout-missing", folder=stem)
    return None


def choose(index: Index, arch: str, where: str) -> Descriptor:
    """The entry of ``index`` for Linux on ``arch``.

    Raises:
        FairleadError: exit code 2; there is none, with those that there are.
    """
    offered = [item for item in index.manifests if _is_image(item)]
    for item in offered:
        name = item.platform.get("architecture", "")
        if (item.platform.get("os"), GOARCH.get(name, name)) == ("linux", arch):
            return item
    unnamed = {item.digest: item for item in offered if not item.platform}
    if len(unnamed) == 1:
        return next(iter(unnamed.values()))
    raise no_platform(where, arch, (_platform(item) for item in offered))


def _platform(item: Descriptor) -> str:
    words = (item.platform.get(name, "") for name in ("os", "architecture", "variant"))
    return plain("/".join(filter(None, words))) or "an unnamed one"


def no_platform(where: str, arch: str, offered: Iterable[str]) -> FairleadError:
    """The image is not for this machine."""
    return fail("platform", arch=arch, where=where, offered=", ".join(sorted(set(offered))))


def _is_image(item: Descriptor) -> bool:
    return is_image(item.platform.get("os"), item.artifact)


def is_image(system: object, artifact: object) -> bool:
    """Whether an entry of an index is an image, and not an attestation or a signature of one.

    Args:
        system, artifact: the ``os`` of its platform, and its ``artifactType``.
    """
    return system != "unknown" and artifact in _IMAGE_CONFIGS


def chosen_names(names: Sequence[tuple[str, ...]], tag: str) -> list[int]:
    """Which of several images are meant: those called ``tag``, or all that share the one name there is.

    Args:
        names: of each image; may be empty.
    """
    if tag:
        return [n for n, own in enumerate(names) if any(_means(name, tag) for name in own)]
    return list(range(len(names))) if len(set(names)) == 1 else []


def _means(name: str, tag: str) -> bool:
    return name == tag or name.endswith((f":{tag}", f"/{tag}"))


def offered_names(names: Sequence[tuple[str, ...]]) -> str:
    """The names to choose from, for an error."""
    return ", ".join(plain(own[0]) if own else "(no name)" for own in names[:12]) or "none"


def _named(index: Index, tag: str, folder: Path) -> Index:
    """The index of those images of a layout that ``tag`` means."""
    images = [item for item in index.manifests if _is_image(item)]
    if not tag and len({item.digest for item in images}) < 2:
        return index
    names = [
        tuple(item.annotations[name] for name in NAMES if item.annotations.get(name))
        for item in images
    ]
    chosen = chosen_names(names, tag)
    if not chosen and tag:
        raise fail("layout-tag", folder=folder, tag=tag, offered=offered_names(names))
    if not chosen:
        raise fail("layout-several", folder=folder, offered=offered_names(names))
    return replace(index, manifests=tuple(images[number] for number in chosen))


def read_layout(folder: Path, arch: str | None = None, tag: str = "") -> Manifest:
    """The image in the layout ``folder``; of several, the one for ``arch``, else for this machine.

    Args:
        tag: the name of one of several images, or what follows its last ``:``.
    Raises:
        FairleadError: exit code 2; it is not a valid layout, has no image of that name, or several.
    """

    def follow(item: Descriptor) -> Manifest | Index:
        path = blob_of(folder, item)
        document = read_document(_small(path), item.media_type, str(path))
        if document.digest != item.digest:
            raise layout_damaged(path, f"it is {document.digest}, the index says {item.digest}")
        return document

    index = folder / "index.json"
    top = read_document(_small(index), OCI_INDEX, str(index))
    if isinstance(top, Index):
        top = _named(top, tag, folder)
    manifest = _descend(top, arch or architecture(), str(folder), follow)
    if manifest is None:
        raise layout_damaged(index, f"indexes in indexes, more than {_DEEPEST} deep")
    return manifest


def _descend(
    document: Manifest | Index,
    arch: str,
    where: str,
    follow: Callable[[Descriptor], Manifest | Index],
) -> Manifest | None:
    """The manifest that an index leads to; None when its indexes are nested too deep."""
    for _ in range(_DEEPEST):
        if isinstance(document, Manifest):
            return document
        document = follow(choose(document, arch, where))
    return None


def blob_of(folder: Path, item: Descriptor) -> Path:
    return folder / "blobs" / "sha256" / item.hex


def _small(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(MOST_BYTES + 1)
    except OSError as exc:
        raise layout_damaged(path, exc.strerror or str(exc)) from None


def layout_damaged(path: Path, why: str) -> FairleadError:
    return fail("layout", path=path, why=why)


def manifest_for(client: Client, arch: str = "") -> tuple[Manifest, str]:
    """The image that the client's reference means on ``arch`` (this machine's), from the registry.

    Returns:
        The manifest, and the digest that the reference itself stands for: the manifest's, or that
        of the index it was chosen from.
    """
    top, where = client.manifest(), str(client.reference)
    manifest = _descend(
        top, arch or architecture(), where, lambda item: client.manifest(item.digest)
    )
    if manifest is None:
        raise client.transport.odd(f"its indexes are nested more than {_DEEPEST} deep")
    return manifest, top.digest


def fetch_layout(
    client: Client, manifest: Manifest, folder: Path, cache: Cache, progress: Progress
) -> None:
    """Makes ``folder``, on the cache's file system, a layout with the image ``manifest``.

    The blobs go to the store, where the next image finds the layers that it shares.

    Raises:
        FairleadError: no room, or a blob cannot be fetched.
    """
    total = sum(item.size for item in manifest.blobs)
    absent = [item for item in manifest.blobs if not cache.blob(item.hex).is_file()]
    need_space(
        cache.root,
        sum(item.size for item in absent),
        f"pulling {client.reference}",
        "XDG_CACHE_HOME",
    )
    with progress.stage("pull layers", total, "B") as stage:
        for item in manifest.blobs:
            stage.note(item.hex[:12])
            download(client, item, cache.blob(item.hex), cache, stage.advance, progress)
        missed = sum(item.size for item in absent)
        stage.result(f"{missed / 1e6:.1f} MB, {(total - missed) / 1e6:.1f} MB were here already")
    lay_out(manifest, folder, cache)


def lay_out(manifest: Manifest, folder: Path, cache: Cache) -> None:
    """Makes ``folder`` a layout of blobs that are all in the store, on the same file system."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for item in manifest.blobs:
        os.link(cache.blob(item.hex), blobs / item.hex)
    own = Descriptor(manifest.media_type, manifest.digest, len(manifest.data))
    (blobs / own.hex).write_bytes(manifest.data)
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [own.to_json()]}
    (folder / "index.json").write_text(json.dumps(index), "utf-8")
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', "utf-8")
