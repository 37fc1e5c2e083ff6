"""Wheels that are compiled against another wheel: they need its very libraries, as torchvision needs torch's.

Where that one comes from an index of variants, such as PyTorch's of wheels without CUDA, PyPI's companions need libraries
that only PyPI's variant has. pip compares versions, and is content.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from fairlead.elf.reader import NotElf, read
from fairlead_build.recipe.inherit import project

_LIBRARY = re.compile(r"\.so(\.\d+)*$")
_MOST_BYTES = 1 << 30
_UNREADABLE = (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
# What distributions and drivers bring.
_SYSTEM = re.compile(
    r"(ld-linux[-\w]*|lib(c|m|mvec|dl|rt|pthread|util|resolv|nsl|crypt|gcc_s|stdc\+\+|gomp|atomic|gfortran|quadmath"
    r"|z|expat|ffi|cuda)|lib(python3|nvidia-|nvcuvid|GL|EGL|X|glib|gobject)[-.\w]*)\.so"
)


def without_their_libraries(
    wheels: Mapping[str, Path], indexed: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """The libraries that no wheel has, by the project whose wheel needs them.

    Only wheels that require one of ``indexed`` are looked into.

    Args:
        wheels: the files of a lock, by project.
        indexed: projects that come from an index of their own.
    """
    present = {posixpath.basename(name) for path in wheels.values() for name in _names(path)}
    needs = {
        name: tuple(sorted(set(_needed(path)) - present))
        for name, path in wheels.items()
        if project(name) not in indexed and _requires(path) & set(indexed)
    }
    return {name: lacking for name, lacking in needs.items() if lacking}


def _names(wheel: Path) -> list[str]:
    with suppress(*_UNREADABLE), zipfile.ZipFile(wheel) as archive:
        return archive.namelist()
    return []


def _requires(wheel: Path) -> set[str]:
    """The projects that a wheel requires."""
    with suppress(*_UNREADABLE), zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            if re.fullmatch(r"[^/]+\.dist-info/METADATA", item.filename):
                with archive.open(item) as stream:
                    text = stream.read(4 << 20).decode("utf-8", "replace")
                lines = re.findall(r"(?m)^Requires-Dist:\s*([A-Za-z0-9._-]+)(.*)$", text)
                names = (name for name, rest in lines if "extra" not in rest)
                return set(map(project, names))
    return set()


def _needed(wheel: Path) -> Iterator[str]:
    """Libraries that the compiled modules of a wheel need, those of the system left out."""
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-wheel-") as folder,
        suppress(*_UNREADABLE),
        zipfile.ZipFile(wheel) as archive,
    ):
        for item in archive.infolist():
            if not _LIBRARY.search(item.filename) or item.file_size > _MOST_BYTES:
                continue
            place = Path(folder, "fairlead-wheel-module.so")
            with archive.open(item) as source, place.open("wb") as target:
                shutil.copyfileobj(source, target)
            with suppress(NotElf):
                yield from (n for n in read(place).needed if not _SYSTEM.match(n))
