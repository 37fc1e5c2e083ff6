"""Image archives as OCI image layouts: a layout in one tar (``oci-archive:``), or what ``docker save`` writes.

An archive is not trusted: only regular files of the expected names are written, to names of our own, and the
layout is read like every other, by digest.
Source: OCI image specification 1.1, image-layout.md; moby, image/spec/v1.2.md; containers/image,
docs/containers-transports.5.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from fairlead.base import bounded_json
from fairlead.base.errors import FairleadError, fail
from fairlead.base.progress import Progress, Stage
from fairlead_build.base.digest import sha256_of
from fairlead_build.base.tar import CHUNK, Bounded
from fairlead_build.cache.store import need_space
from fairlead_build.registry.layout import NAMES, chosen_names, is_image, offered_names
from fairlead_build.registry.manifest import MOST_BYTES, OCI_INDEX, OCI_MANIFEST, Descriptor
from fairlead_build.registry.problems import plain

ARCHIVES = ("oci-archive", "docker-archive")  # as skopeo and Apptainer call them
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_PACKED = (_GZIP, b"BZh", b"\xfd7zXZ")
_WANTED = re.compile(
    r"oci-layout|index\.json|blobs/sha256/[0-9a-f]{64}|[^\0]+\.(?:json|tar|tar\.gz)"
)
_MOST_MEMBERS = 20_000
_MOST_LINKS = 8  # from one layer to another of the same content, in archives of old
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"


def is_archive(path: Path) -> bool:
    """Whether a regular file begins like a tar, packed or not."""
    if not os.path.isfile(path):  # noqa: PTH113 - a name that is too long is none, too
        return False
    with path.open("rb") as stream:
        start = stream.read(tarfile.BLOCKSIZE)
    return start[257:262] == b"ustar" or start.startswith((*_PACKED, _ZSTD))


def find_archive(name: str, *, sure: bool) -> tuple[Path, str] | None:
    """The file and the tag of the archive called ``FILE[:TAG]``; None if it is not an archive.

    Args:
        sure: ``name`` is meant as that of an archive.
    Raises:
        FairleadError: exit code 2; it is meant, and is none.
    """
    file, tag = Path(name), ""
    if not os.path.isfile(file):  # noqa: PTH113 - a name that is too long is none, too
        stem, _, tag = name.partition(":")
        file = Path(stem)
    if is_archive(file):
        return file, tag
    if sure and os.path.exists(file):  # noqa: PTH110
        raise fail("image-archive-no-image", path=file)
    if sure:
        raise fail("image-archive-missing", path=file)
    return None


def lay_out_archive(file: Path, tag: str, folder: Path, progress: Progress) -> None:
    """Makes ``folder`` an OCI image layout with the image ``tag`` of the archive ``file``.

    Args:
        tag: the name of one of several images, or what follows its last ``:``; may be empty if there is one image.
    Raises:
        FairleadError: exit code 2; the archive is damaged, is not one of images, has none of that name, or several.
    """
    folder.mkdir()
    with progress.stage(f"read {file.name}", file.stat().st_size, "B") as stage:
        members = _Members(file, _extracted(file, folder / "members", stage))
    if "index.json" in members and "oci-layout" in members:
        index = members.json("index.json")
        with _sound(file):
            entries = [entry for entry in index["manifests"] if _is_image(entry)]
            names = [_texts(entry.get("annotations") or {}, NAMES) for entry in entries]
            if tag or len({str(entry["digest"]) for entry in entries}) != 1:
                entries = [entries[n] for n in _chosen(file, names, tag)]
            index["manifests"] = entries
        for name in members:
            if name.startswith("blobs/"):
                _place(members.path(name), folder, name.rpartition("/")[2])
    elif "manifest.json" in members:
        index = _of_docker(file, members, tag, folder)
    else:
        raise fail("image-archive-no-image", path=file)
    (folder / "index.json").write_text(json.dumps(index), "utf-8")
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', "utf-8")


class _Members(Mapping[str, Path]):
    """The extracted members of an archive, by name; links lead to what they name."""

    def __init__(self, file: Path, members: Mapping[str, Path | str]) -> None:
        self._file, self._members = file, members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, name: str) -> Path:
        for _ in range(_MOST_LINKS):
            place = self._members[name]
            if isinstance(place, Path):
                return place
            name = place
        raise KeyError(name)

    def path(self, name: str) -> Path:
        """The file that a member's content is in.

        Raises:
            FairleadError: there is no such member.
        """
        try:
            return self[posixpath.normpath(name)]
        except KeyError:
            raise _damaged(self._file, f"{plain(name)[:80]} is missing in it") from None

    def json(self, name: str) -> Any:
        with self.path(name).open("rb") as stream:
            body = stream.read(MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise _damaged(self._file, f"{name} is longer than {MOST_BYTES} bytes")
        with _sound(self._file):
            return bounded_json.loads(body)


def _extracted(file: Path, folder: Path, stage: Stage) -> dict[str, Path | str]:
    """The wanted members: where each one's content is, or the name that a link leads to."""
    folder.mkdir()
    members: dict[str, Path | str] = {}
    with _sound(file), file.open("rb") as stream:
        if stream.read(len(_ZSTD)) == _ZSTD:
            raise fail("image-archive-zstd", path=file)
        stream.seek(0)
        with tarfile.open(fileobj=_Counted(stream, stage), mode="r|*", tarinfo=Bounded) as archive:  # type: ignore[call-overload]
            for number, info in enumerate(archive):
                if number == _MOST_MEMBERS:
                    raise _damaged(file, f"it has more than {_MOST_MEMBERS} members")
                name = posixpath.normpath(info.name)
                if not _WANTED.fullmatch(name):
                    continue
                if info.issym():
                    place = posixpath.dirname(name)
                    members[name] = posixpath.normpath(posixpath.join(place, info.linkname))
                elif info.islnk():
                    members[name] = posixpath.normpath(info.linkname)
                elif info.isreg():
                    need_space(folder, info.size, f"reading {file.name}", "XDG_CACHE_HOME")
                    content = archive.extractfile(info)
                    assert content is not None
                    members[name] = target = folder / str(number)
                    with target.open("wb") as out:
                        while chunk := content.read(CHUNK):
                            out.write(chunk)
    return members


class _Counted:
    """A stream that reports what is read of it."""

    def __init__(self, stream: IO[bytes], stage: Stage) -> None:
        self._stream, self._stage = stream, stage

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._stage.advance(len(data))
        return data


def _of_docker(file: Path, members: _Members, tag: str, folder: Path) -> dict[str, Any]:
    """Makes blobs of what ``docker save`` wrote; returns the index of the layout."""
    with _sound(file):
        images = members.json("manifest.json")
        names = [tuple(str(name) for name in image.get("RepoTags") or ()) for image in images]
        image = images[_chosen(file, names, tag)[0]]
        config, paths = str(image["Config"]), [str(name) for name in image["Layers"]]
    layers = [_blob(members.path(path), _layer_type(members.path(path)), folder) for path in paths]
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": _blob(members.path(config), _CONFIG, folder).to_json(),
        "layers": [layer.to_json() for layer in layers],
    }
    manifest = folder / "manifest"
    manifest.write_text(json.dumps(document), "utf-8")
    own = _blob(manifest, OCI_MANIFEST, folder).to_json()
    return {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [own]}


def _layer_type(path: Path) -> str:
    with path.open("rb") as stream:
        start = stream.read(len(_ZSTD))
    if start == _ZSTD:
        return f"{_LAYER}+zstd"
    return f"{_LAYER}+gzip" if start.startswith(_GZIP) else _LAYER


def _blob(path: Path, media_type: str, folder: Path) -> Descriptor:
    digest = sha256_of(path)
    _place(path, folder, digest)
    return Descriptor(media_type, f"sha256:{digest}", path.stat().st_size)


def _place(path: Path, folder: Path, digest: str) -> None:
    """Makes ``path`` a blob of the layout; its digest is checked when the layout is read."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):  # a layer that comes twice
        os.link(path, blobs / digest)


def _is_image(entry: Mapping[str, Any]) -> bool:
    return is_image((entry.get("platform") or {}).get("os"), entry.get("artifactType", ""))


def _texts(annotations: Mapping[str, Any], keys: Collection[str]) -> tuple[str, ...]:
    return tuple(str(annotations[key]) for key in keys if annotations.get(key))


def _chosen(file: Path, names: list[tuple[str, ...]], tag: str) -> list[int]:
    """Which of the images are meant: those called ``tag``, or all that share the one name there is.

    Args:
        names: of each image in the archive, its names; may be empty.
    """
    if match := chosen_names(names, tag):
        return match
    offered = offered_names(names)
    if tag:
        raise fail("image-archive-tag", path=file, tag=tag, offered=offered)
    raise fail("image-archive-several", path=file, offered=offered)


@contextlib.contextmanager
def _sound(file: Path) -> Iterator[None]:
    """Reports what an archive that its writer did not finish, or made by hand, makes its readers raise."""
    try:
        yield
    except FairleadError:
        raise
    except (tarfile.TarError, EOFError, zlib.error) as exc:
        raise _damaged(file, str(exc) or "it ends early") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as exc:
        why = f"its list of images is invalid: {plain(str(exc))[:80] or type(exc).__name__}"
        raise _damaged(file, why) from None


def _damaged(file: Path, why: str) -> FairleadError:
    return fail("image-archive-damaged", path=file, why=why)
