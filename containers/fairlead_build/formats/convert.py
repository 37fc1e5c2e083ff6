"""An OCI image layout of any origin as a SIF: its layers merged, squashed and wrapped.

What the image's configuration says (variables, working directory, entry point, labels) goes to the
scripts of ``/.singularity.d``, where Apptainer looks for it. The same layout gives the same SIF.
Source: OCI image format specification 1.1, config.md; apptainer/apptainer, the scripts in an image.
"""

from __future__ import annotations

import calendar
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base import bounded_json
from fairlead.base.progress import Progress, Silent
from fairlead_build.base import tar
from fairlead_build.base.digest import sha256_of
from fairlead_build.base.platform import architecture
from fairlead_build.cache.store import need_space, scratch_parent, workspace
from fairlead_build.formats.sif import write_sif
from fairlead_build.formats.wrapping import as_json, engine_files
from fairlead_build.registry.layout import (
    GOARCH,
    blob_of,
    layout_damaged,
    no_platform,
    read_layout,
)
from fairlead_build.registry.manifest import Manifest, digest_of
from fairlead_build.registry.problems import plain
from fairlead_build.squashfs.oci_layers import LayerFile, read_layers, write_tar
from fairlead_build.squashfs.squash import Compression, squashing

_MOST_CONFIG_BYTES = 8 << 20
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class Configuration:
    """What an image's configuration says. ``epoch`` is when it was made, in seconds since 1970."""

    architecture: str
    epoch: int
    env: Mapping[str, str]
    labels: Mapping[str, str]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    folder: str
    diff_ids: tuple[str, ...]


class _Elsewhere(ValueError):
    """The image is for a system that fairlead does not know; its message is that."""


def from_layout(
    layout: Path,
    target: Path,
    progress: Progress | None = None,
    manifest: Manifest | None = None,
) -> None:
    """Writes ``target``, a SIF of the image in ``layout``.

    Args:
        manifest: of the image; of the only one for this machine by default.
    Raises:
        FairleadError: exit code 2; the layout is damaged or hostile.
        OSError: as writing does; nothing is left under ``target`` then.
    """
    progress = progress or Silent()
    manifest = manifest or read_layout(layout)
    config, layers, packed = open_layout(layout, manifest)
    with progress.stage("read the layers", packed, "B") as stage:
        merged = read_layers(layers, advance=stage.advance)
        stage.result(f"{merged.tree.entries} members in {len(layers)} layers")
    # zstd packs a tree about as well as the layers are packed.
    room = 2 * packed + (64 << 20)
    need_space(target.parent, room, f"converting {layout.name}", "XDG_CACHE_HOME")
    with workspace(scratch_parent(room), "fairlead-convert-") as scratch:
        squashfs = scratch / "image.squashfs"
        how = Compression("zstd", 3, config.epoch)
        go = f"cd {shlex.quote(config.folder)} || exit\n" if config.folder not in ("", "/") else ""
        run = go + _invocation(config.entrypoint, config.command)
        with (
            progress.stage("squash", merged.bytes, "B") as stage,
            squashing(squashfs, how, "run the same command again") as sink,
        ):
            for path, (body, mode) in engine_files(config.env, config.labels, run).items():
                # An image made from a SIF has scripts of its own there, which would win.
                merged.tree.remove(path)
                sink.write(tar.small_file(path, body, mode, config.epoch))
            write_tar(merged, sink, advance=stage.advance)
        digest = sha256_of(squashfs)
        with progress.stage("write the SIF", squashfs.stat().st_size, "B") as stage:
            note = {
                "schema": "fairlead/converted",
                "version": 1,
                "manifest": manifest.digest,
            }
            write_sif(
                target, squashfs, ("oci.json", as_json(note)), arch=config.architecture,
                epoch=config.epoch, squashfs_sha256=digest, advance=stage.advance,
            )  # fmt: skip


def open_layout(
    layout: Path, manifest: Manifest | None = None
) -> tuple[Configuration, list[LayerFile], int]:
    """The configuration of the image in ``layout``, its layers with the digests that they must have,
    and the bytes of their files.

    Args:
        manifest: of the image; of the only one for this machine by default.

    Raises:
        FairleadError: the layout is damaged, or the configuration counts other layers.
    """
    manifest = manifest or read_layout(layout)
    config = read_configuration(layout, manifest)
    have, listed = len(manifest.layers), len(config.diff_ids)
    if have != listed:
        why = f"it has {have} layers, its configuration lists {listed}"
        raise layout_damaged(layout, why)
    layers = []
    for item, diff_id in zip(manifest.layers, config.diff_ids, strict=True):
        path = blob_of(layout, item)
        if not path.is_file():
            raise layout_damaged(layout, f"layer {item.digest} is missing")
        layers.append(LayerFile(path, item.digest, diff_id))
    return config, layers, sum(layer.path.stat().st_size for layer in layers)


def read_configuration(layout: Path, manifest: Manifest) -> Configuration:
    """The configuration of the image in ``layout``, checked against its digest.

    Raises:
        FairleadError: exit code 2; it is missing, damaged, or not that of an image.
    """
    path = blob_of(layout, manifest.config)
    try:
        with path.open("rb") as stream:
            body = stream.read(_MOST_CONFIG_BYTES + 1)
    except OSError as exc:
        raise layout_damaged(layout, f"its configuration cannot be read: {exc.strerror}") from None
    if len(body) > _MOST_CONFIG_BYTES:
        raise layout_damaged(layout, f"its configuration is longer than {_MOST_CONFIG_BYTES} bytes")
    if digest_of(body) != manifest.config.digest:
        raise layout_damaged(layout, "its configuration is not the one that its manifest names")
    try:
        return parse_configuration(bounded_json.loads(body))
    except _Elsewhere as exc:
        raise no_platform(str(layout), architecture(), [plain(str(exc))]) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise layout_damaged(layout, f"its configuration is invalid: {exc}") from None


def parse_configuration(data: Mapping[str, Any]) -> Configuration:
    """Reads an OCI or Docker image configuration.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is none.
    """
    inner = data.get("config") or {}
    env = {}
    for item in _texts(inner.get("Env")):
        name, _, value = item.partition("=")
        if "\0" in value:
            raise ValueError(f"variable {name[:80]!r} holds a NUL")
        if _VARIABLE.match(name):  # others cannot be set by a shell, nor by Apptainer
            env[name] = value
    labels = inner.get("Labels") or {}
    if not all(isinstance(part, str) for pair in labels.items() for part in pair):
        raise ValueError("its labels are not texts")
    entry = _texts(inner.get("Entrypoint"))
    command = _texts(inner.get("Cmd"))
    if any("\0" in word for word in (*entry, *command)):
        raise ValueError("its command holds a NUL")
    folder = inner.get("WorkingDir") or ""
    if not isinstance(folder, str) or "\0" in folder:
        raise ValueError("its working folder is not a path")
    rootfs = data["rootfs"]
    return Configuration(
        architecture=_architecture(data),
        epoch=_epoch(data.get("created")),
        env=env,
        labels=dict(sorted(labels.items())),
        entrypoint=entry,
        command=command,
        folder=folder,
        diff_ids=_texts(rootfs["diff_ids"]),
    )


def _texts(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("a list of texts is something else")
    return tuple(value)


def _architecture(data: Mapping[str, Any]) -> str:
    """The architecture that a configuration names, this machine's where it names none."""
    system, name = str(data.get("os") or "linux"), str(data.get("architecture") or architecture())
    known = GOARCH.get(name, name)
    if system != "linux" or known not in ("amd64", "arm64"):
        raise _Elsewhere(f"{system}/{name}")
    return known


def _epoch(created: Any) -> int:
    if not isinstance(created, str) or not re.match(r"\d{4}(-\d\d){2}T\d\d(:\d\d){2}", created):
        return 0
    try:
        seconds = calendar.timegm(time.strptime(created[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0
    return min(max(seconds, 0), (1 << 32) - 1)


def _invocation(entrypoint: Sequence[str], command: Sequence[str]) -> str:
    # What the caller gives replaces the command and follows the entry point, as with Docker.
    default = shlex.join(command or (() if entrypoint else ("/bin/sh",)))
    lines = f"[ $# -gt 0 ] || set -- {default}\n" if default else ""
    words = f"{shlex.join(entrypoint)} " if entrypoint else ""
    return f'{lines}exec {words}"$@"\n'
