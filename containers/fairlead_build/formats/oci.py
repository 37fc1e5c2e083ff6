"""An OCI image layout of the same tree: three layers, so that images share what they have in common.

The layers are streamed from the squashfs and compressed by the locked pigz, whose output depends on
its input alone. Everything else is JSON, so the same image gives the same digests everywhere.
Source: the OCI image format specification 1.0 (layout, manifest, config, layer).
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import subprocess
import tarfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tarfile import TarInfo
from typing import IO, Any

from fairlead.base.errors import FairleadError
from fairlead.base.progress import Progress
from fairlead_build.base import tar
from fairlead_build.base.digest import Advance, sha256_of, unseen
from fairlead_build.base.proc import child, clean_environment, tool_failed
from fairlead_build.cache.store import need_space
from fairlead_build.formats.images import ImageEntry
from fairlead_build.formats.model import Format
from fairlead_build.formats.wrapping import PARTS, Wrapping, wrapping_of
from fairlead_build.registry.layout import read_layout
from fairlead_build.registry.manifest import OCI_INDEX, OCI_MANIFEST, Manifest
from fairlead_build.squashfs.tree_stream import bare_squashfs, squashfs_entries
from fairlead_build.tools import tool_tree

_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True)
class _Layer:
    """One layer: ``digest`` and ``size`` in bytes of the file, ``diff_id`` of the tar in it."""

    title: str
    digest: str
    diff_id: str
    size: int


def write_layout(
    folder: Path,
    image: Path,
    wrapping: Wrapping,
    advance: Advance = unseen,
) -> Manifest:
    """Writes the layout into ``folder``, which must be empty; returns its manifest.

    Args:
        image: a SIF, or a bare squashfs.
    Raises:
        FairleadError: a tool failed, or there is no room.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    with bare_squashfs(image) as squashfs:
        try:
            layers = _write_layers(blobs, squashfs, wrapping, advance, links=True)
        except _LinkBetweenLayers:
            layers = _write_layers(blobs, squashfs, wrapping, advance, links=False)
    config = _blob(blobs, _config(wrapping, layers))
    manifest = _blob(blobs, _manifest(wrapping, layers, config))
    entry = {
        "mediaType": OCI_MANIFEST,
        **manifest,
        "platform": {"architecture": wrapping.architecture, "os": "linux"},
        "annotations": {"org.opencontainers.image.ref.name": "latest"},
    }
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]}
    (folder / "index.json").write_bytes(_json(index))
    (folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    return read_layout(folder, wrapping.architecture)


class _LinkBetweenLayers(Exception):
    """A hard link whose file is in another layer; engines unpack each layer separately."""


def _write_layers(
    blobs: Path, squashfs: Path, wrapping: Wrapping, advance: Advance, links: bool
) -> list[_Layer]:
    with ExitStack() as stack:
        writers = [
            _Writer(stack, blobs / f"layer-{part}.partial", title)
            for part, title in enumerate(PARTS)
        ]
        folders: dict[str, TarInfo] = {}
        parts: dict[str, int] = {}
        for info, content in squashfs_entries(squashfs, strict=True, links=links):
            part = parts[info.name] = wrapping.part(info.name)
            if info.isdir():
                folders[info.name] = info
            if info.islnk():
                info.linkname = posixpath.normpath(info.linkname)
                if parts.get(info.linkname) != part:
                    raise _LinkBetweenLayers(info.name)
            writers[part].add(info, content, folders, advance)
        return [writer.close() for writer in writers if writer.written]


class _Writer:
    """One layer on its way through pigz into a file; ``stack`` ends both."""

    def __init__(self, stack: ExitStack, path: Path, title: str):
        self._path, self._title = path, title
        self._digest = hashlib.sha256()
        self.written: set[str] = set()
        out = stack.enter_context(path.open("wb"))
        stack.callback(path.unlink, missing_ok=True)
        self._argv = [*tool_tree.command("pigz"), "--no-name", "--stdout"]
        env, pipe = clean_environment(), subprocess.PIPE
        pigz = child(self._argv, env=env, stdin=pipe, stdout=out, stderr=pipe)
        self._process = stack.enter_context(pigz)

    def add(
        self,
        info: TarInfo,
        content: IO[bytes] | None,
        folders: dict[str, TarInfo],
        advance: Advance,
    ) -> None:
        # A layer lists the folders above its files too: else an engine would create them,
        # with modes of its own, over those of the layers below.
        parents = reversed(PurePosixPath(info.name).parents)
        for member in (*(folders.get(str(above)) for above in parents), info):
            if member is not None and member.name not in self.written:
                self.written.add(member.name)
                self._put(tar.header(member, tarfile.PAX_FORMAT))
        if content is not None:
            while chunk := content.read(tar.CHUNK):
                self._put(chunk)
                advance(len(chunk))
            self._put(bytes(-info.size % tar.BLOCK))

    def _put(self, data: bytes) -> None:
        self._digest.update(data)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
        except BrokenPipeError:
            raise self._failed() from None

    def close(self) -> _Layer:
        self._put(tar.END)
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait():
            raise self._failed()
        digest = sha256_of(self._path)
        size = self._path.stat().st_size
        self._path.replace(self._path.with_name(digest))
        return _Layer(self._title, f"sha256:{digest}", f"sha256:{self._digest.hexdigest()}", size)

    def _failed(self) -> Exception:
        assert self._process.stderr is not None
        output = self._process.stderr.read().decode("utf-8", "replace")
        code, doing = self._process.wait(), "write an OCI layer"
        return tool_failed(self._argv, code, output, doing, "fairlead build RECIPE")


def _config(image: Wrapping, layers: list[_Layer]) -> dict[str, Any]:
    made = {"created": _time(image.epoch), "created_by": f"fairlead build {image.name}"}
    return {
        "created": _time(image.epoch),
        "architecture": image.architecture,
        "os": "linux",
        "config": {
            "Env": [f"{name}={value}" for name, value in image.env.items()],
            "Cmd": list(image.command),
            "WorkingDir": "/",
            "Labels": dict(sorted(image.labels.items())),
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{**made, "comment": layer.title} for layer in layers],
    }


def _manifest(image: Wrapping, layers: list[_Layer], config: dict[str, Any]) -> dict[str, Any]:
    annotations = {
        "org.opencontainers.image.title": image.name,
        "org.opencontainers.image.description": image.summary,
        "org.opencontainers.image.created": _time(image.epoch),
        **{k: v for k, v in image.labels.items() if k.startswith("org.opencontainers.image.")},
        "org.fairlead.version": image.version,
        **{f"org.fairlead.{name}.sha256": digest for name, digest in image.digests.items()},
    }
    return {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": _CONFIG, **config},
        "layers": [
            {"mediaType": _LAYER, "digest": layer.digest, "size": layer.size} for layer in layers
        ],
        "annotations": dict(sorted(annotations.items())),
    }


def _time(epoch: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))


def _blob(blobs: Path, document: dict[str, Any]) -> dict[str, Any]:
    data = _json(document)
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _write(entry: ImageEntry, target: Path, progress: Progress) -> None:
    image = Path(entry.path)
    need_space(target.parent, 2 * entry.bytes, "the OCI layout", "XDG_CACHE_HOME")
    wrapping = wrapping_of(image, entry.sif_sha256)
    with progress.stage("write the OCI layers", wrapping.bytes, "B") as stage:
        target.mkdir()
        manifest = write_layout(target, image, wrapping, stage.advance)
        size = sum(layer.size for layer in manifest.layers)
        stage.result(f"{len(manifest.layers)} layers, {size / 1e6:.0f} MB, {manifest.digest}")


def _holds(target: Path, kept: Path, entry: ImageEntry, progress: Progress) -> bool:
    try:
        return all(
            (target / path.relative_to(kept)).stat().st_size == path.stat().st_size
            for path in kept.rglob("*")
            if path.is_file()
        ) and read_layout(target) == read_layout(kept)
    except (OSError, FairleadError):
        return False


FORMAT = Format(
    "oci", ".oci", "an OCI image layout, for Podman, Docker and registries", _write,
    folder=True, copied=True, holds=_holds, digest=lambda path: read_layout(path).digest,
)  # fmt: skip
