"""Images into Docker's or Podman's own store, and from there to a registry, by the docker SDK.

The image goes as a ``docker save`` archive, which every version of both engines reads. It streams
from the OCI layout; nothing is written to disk on the way.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from fairlead.base import bounded_json
from fairlead.base.errors import FairleadError, fail
from fairlead.base.progress import Progress, Stage
from fairlead_build.base import tar
from fairlead_build.engines.socket import Engine, asking, refused
from fairlead_build.registry.auth import find_credential
from fairlead_build.registry.client import Client
from fairlead_build.registry.layout import blob_of, layout_damaged, read_layout
from fairlead_build.registry.manifest import Manifest
from fairlead_build.registry.reference import Reference, parse_reference

SCHEME = "docker-daemon:"


@dataclass(frozen=True)
class Stored:
    """An image in an engine's store.

    Attributes:
        name: the engine's name for it, ``HOST/REPOSITORY:TAG``.
        image_id: the engine's own identifier.
        bytes_sent: 0 when the engine had it.
        digest: of the manifest in the registry, after a push; the engine may pack the layers again.
    """

    engine: str
    address: str
    name: str
    image_id: str
    bytes_sent: int
    digest: str = ""


def parse_name(text: str) -> Reference:
    """What ``docker-daemon:NAME:TAG`` names.

    Raises:
        FairleadError: exit code 2; an engine does not take such a name.
    """
    reference = parse_reference("docker://" + text.removeprefix(SCHEME).removeprefix("//"))
    if reference.digest:
        raise fail("reference-engine-store-takes-tag", text=text, scheme=SCHEME)
    return reference


def load(
    engine: Engine, layout: Path, reference: Reference, again: str, progress: Progress
) -> Stored:
    """Loads the image of an OCI layout into the engine's store and tags it, unless it is there.

    Raises:
        FairleadError: the layout is damaged, or the engine refuses or breaks off.
    """
    manifest = read_layout(layout)
    name = name_of(reference)
    wanted = _layers_of(layout, manifest)
    with asking(engine, "look into its store", again):
        stored = _inspect(engine, name)
    sent = 0
    # Docker and Podman call an image by the digest of its configuration, or of its manifest.
    ident = str((stored or {}).get("Id", "")).removeprefix("sha256:")
    if ident not in (manifest.config.hex, manifest.digest.partition(":")[2]):
        sent, chunks = _archive(layout, manifest, name)
        with (
            progress.stage(f"load into {engine.name}", sent, "B") as stage,
            asking(engine, "load the image", again),
        ):
            for line in engine.client.load_image(_counted(chunks, stage)):
                if "error" in line:
                    raise refused(engine, "load the image", str(line["error"]), again)
            stage.result(f"{sent / 1e6:.0f} MB as {name}")
        with asking(engine, "look into its store", again):
            stored = _inspect(engine, name)
    layers = (stored or {}).get("RootFS", {}).get("Layers")
    if stored is None or layers != wanted:
        raise refused(engine, "load the image", f"it holds {layers} under {name}", again)
    return Stored(engine.name, engine.address, name, str(stored["Id"]), sent)


def _layers_of(layout: Path, manifest: Manifest) -> list[str]:
    """The digests of the unpacked layers, as the image's configuration lists them."""
    try:
        listed = bounded_json.loads(blob_of(layout, manifest.config).read_bytes())
        return [str(digest) for digest in listed["rootfs"]["diff_ids"]]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise layout_damaged(layout, f"its configuration is invalid: {exc}") from None


def push(
    engine: Engine, stored: Stored, reference: Reference, again: str, progress: Progress
) -> Stored:
    """Lets the engine push what it has under the reference's name.

    Returns:
        ``stored`` with the digest that the registry reports, if it does.
    Raises:
        FairleadError: engine or registry refuse.
    """
    credential = find_credential(reference)
    secrets = credential.secrets if credential else ()
    login = {}
    if credential and credential.identity_token:
        login = {"identitytoken": credential.identity_token}
    elif credential:
        login = {"username": credential.user, "password": credential.password}
    digest = ""
    with (
        progress.stage(f"push by {engine.name}") as stage,
        asking(engine, "push the image", again, secrets),
    ):
        name, tag = stored.name.rpartition(":")[0], reference.tag
        lines = engine.client.push(name, tag=tag, stream=True, decode=True, auth_config=login)
        for line in lines:
            if "error" in line:
                raise refused(engine, "push the image", str(line["error"]), again, secrets)
            digest = str((line.get("aux") or {}).get("Digest") or digest)
            words = " ".join(str(line.get(k) or "") for k in ("status", "id", "stream")).strip()
            if words and words.isprintable():
                stage.note(words[:60])
        if not digest:  # Podman 4 does not report it
            with suppress(FairleadError):  # only the engine may be let in
                digest = Client(reference).has_manifest(reference.tag)
        stage.result(digest or stored.name)
    return replace(stored, digest=digest)


def name_of(reference: Reference) -> str:
    """A reference as engines write it: without the scheme."""
    return str(reference).partition("://")[2]


def _inspect(engine: Engine, name: str) -> dict[str, Any] | None:
    from docker.errors import ImageNotFound, NotFound

    try:
        image: dict[str, Any] = engine.client.inspect_image(name)
    except (ImageNotFound, NotFound):
        return None
    return image


def _archive(layout: Path, manifest: Manifest, name: str) -> tuple[int, Iterator[bytes]]:
    """A layout as the tar stream that ``docker load`` reads, and its size.

    Source: moby/moby, image/spec/v1.2.md, "Combined Image JSON + Filesystem Changeset Format".
    """
    table = {
        "Config": f"blobs/sha256/{manifest.config.hex}",
        "RepoTags": [name],
        "Layers": [f"blobs/sha256/{item.hex}" for item in manifest.layers],
    }
    text = json.dumps([table]).encode()
    sizes = [len(text), *(item.size for item in manifest.blobs)]

    def chunks() -> Iterator[bytes]:
        yield from _member("manifest.json", len(text), io.BytesIO(text))
        for item in manifest.blobs:
            with blob_of(layout, item).open("rb") as stream:
                yield from _member(f"blobs/sha256/{item.hex}", item.size, stream)
        yield tar.END

    whole = sum(tar.BLOCK + size + -size % tar.BLOCK for size in sizes)
    return whole + len(tar.END), chunks()


def _counted(chunks: Iterator[bytes], stage: Stage) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        stage.advance(len(chunk))


def _member(name: str, size: int, content: IO[bytes]) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.size = size
    return tar.member(info, content)
