"""Unpacks the archive of a source, tar or zip, which may be hostile.

``source_in_sandbox.py`` uses it inside a tree that is thrown away; :func:`unpack` works in that tree's
jail, and every name is checked too. tarfile's data filter would do a part
of it, but Debian 12's Python 3.11.2 has none.
"""

from __future__ import annotations

import bz2  # noqa: F401  (tarfile's readers: in a jail it is too late to import them)
import encodings.cp437  # noqa: F401
import gzip  # noqa: F401
import lzma  # noqa: F401
import os
import posixpath
import shutil
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO

from fairlead_build.base.jail import Jail, within
from fairlead_build.base.tar import Bounded

# More than this much larger than its archive is a bomb, not a source.
_RATIO, _FREE_BYTES = 200, 256 << 20


class Hostile(ValueError):
    """An archive names something outside its folder, or that no source has."""


def unpack(archive: Path, name: str, jail: Jail, inner: str) -> None:
    """Unpacks an archive to the folder ``inner`` of a jail's tree, which is made.

    Works in the jail, so nothing outside it can be reached, whatever the archive says.

    Args:
        name: the archive's own name, whose ending gives its kind.
    Raises:
        Hostile: it reaches out of its folder, holds devices, is a decompression bomb, or damaged.
    """
    with archive.open("rb") as stream:

        def unpack_here() -> str:
            Path(inner).mkdir(parents=True)
            os.chdir(inner)
            room = _RATIO * os.fstat(stream.fileno()).st_size + _FREE_BYTES
            try:
                (unzip if name.endswith(".zip") else untar)(stream, room)
                _lift_single_folder()
            except Hostile as exc:
                return str(exc)
            except Exception as exc:
                return f"{type(exc).__name__}: {exc}"
            return ""

        if problem := within(jail, unpack_here):
            raise Hostile(problem)


def untar(stream: IO[bytes], room: int) -> None:
    """Unpacks a tar, compressed or not, into the present folder; at most ``room`` bytes."""
    with tarfile.open(fileobj=stream, mode="r:*", tarinfo=Bounded) as archive:
        for member in archive:
            name = _inside(member.name)
            if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                raise Hostile(f"{name} is not a file, folder or link")
            if member.issym():
                _inside(posixpath.join(posixpath.dirname(name), member.linkname), member.linkname)
            elif member.islnk():
                _inside(member.linkname)
            _no_link_above(name)
            room -= member.size
            _has_room(room)
            member.name = name
            member.uid = member.gid = 0
            member.mode = (member.mode & 0o777) | (0o700 if member.isdir() else 0o600)
            archive.extract(member, set_attrs=not member.issym())


def unzip(stream: IO[bytes], room: int) -> None:
    """Unpacks a zip into the present folder; at most ``room`` bytes."""
    with zipfile.ZipFile(stream) as archive:
        for info in archive.infolist():
            name = _inside(info.filename)
            _no_link_above(name)
            room -= info.file_size
            _has_room(room)
            if info.is_dir():
                Path(name).mkdir(parents=True, exist_ok=True)
                continue
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as data, open(name, "xb") as out:
                shutil.copyfileobj(data, out)
            Path(name).chmod(0o755 if (info.external_attr >> 16) & 0o100 else 0o644)


def _inside(path: str, shown: str = "") -> str:
    plain = posixpath.normpath(path)
    if path.startswith("/") or plain.startswith("../") or plain == ".." or "\0" in path:
        raise Hostile(f"it names {shown or path!r}, which lies outside its folder")
    return plain


def _no_link_above(name: str) -> None:
    """A link that came before must not carry a later member somewhere else."""
    for above in PurePosixPath(name).parents:
        if Path(above).is_symlink():
            raise Hostile(f"{name} would be written through the link {above}")


def _has_room(left: int) -> None:
    if left < 0:
        raise Hostile(f"its content is more than {_RATIO} times its size: a decompression bomb")


def _lift_single_folder() -> None:
    """``NAME-1.0/...`` becomes ``...``, as every archive of sources has one such folder."""
    inner = list(Path().iterdir())
    if len(inner) == 1 and inner[0].is_dir() and not inner[0].is_symlink():
        held = inner[0].rename(f".fairlead-{os.getpid()}")
        for path in held.iterdir():
            path.rename(path.name)
        held.rmdir()
