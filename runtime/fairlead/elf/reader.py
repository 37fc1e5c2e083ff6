"""ELF facts: what a file needs, offers and where it looks for it. No code of the file is run.

pyelftools reads headers and sections; the symbol table is unpacked here, because a TensorFlow
image holds libraries with 10^5 symbols and only those about MPI are wanted. Source: System V
gABI chapter 5 and the LSB's symbol versioning. :mod:`fairlead.image.scan` calls this for every file of a tree.
"""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.elf.facts import Elf

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

_MPI_SYMBOL = re.compile(r"P?MPI_[A-Z]\w*|p?mpi_\w+?_{1,2}")
_VERSION = re.compile(r"([A-Z]+)_(\d+(?:\.\d+)*)$")
_PREFIXES = ("GLIBC", "GLIBCXX", "CXXABI", "GFORTRAN", "FABRIC")
# Data objects that some MPIs export and others never do; see mpi_symbols.py.
_MARKERS = frozenset({"ompi_mpi_comm_world", "I_MPI_Check_image_status"})


class NotElf(ValueError):
    """The file is no ELF file, or a damaged one."""


def version_key(version: str) -> tuple[int, ...]:
    """``"2.34"`` as ``(2, 34)``, so that versions compare as numbers.

    >>> version_key("2.4") < version_key("2.34")
    True
    """
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def newest(versions: Iterator[str] | list[str]) -> str:
    """The highest of some versions; empty when there are none."""
    return max(versions, key=version_key, default="")


def read(path: Path, shown_as: str = "") -> Elf:
    """The facts of the file at ``path``, called ``shown_as`` in them (its path in an image).

    Raises:
        NotElf: it is no ELF file, is truncated, or contradicts itself.
        OSError: it cannot be read.
    """
    status = path.stat()
    facts = _read(str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return replace(facts, path=shown_as) if shown_as else facts


@lru_cache(maxsize=1024)  # glibc is behind every library, and is asked for as often
def _read(name: str, *identity: int) -> Elf:
    from elftools.elf.elffile import ELFFile  # 20 ms, and facts are mostly cached

    path = Path(name)
    with path.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            raise NotElf(f"{path} is not an ELF file")
        stream.seek(0)
        try:
            elf = ELFFile(stream)
            return _facts(elf, name)
        except Exception as exc:
            # pyelftools trusts what it reads: damage shows as an error of any kind, among them
            # a seek to an impossible place. Only a failing disk is something else.
            if isinstance(exc, OSError) and exc.errno != errno.EINVAL:
                raise
            raise NotElf(f"{path} is a damaged ELF file: {exc}") from None


def _facts(elf: ELFFile, name: str) -> Elf:
    dynamic: Any = elf.get_section_by_name(".dynamic")
    dynamic = dynamic or next(_segments(elf, "PT_DYNAMIC"), None)
    tags = _tags(dynamic)
    imports, exports = _dynamic_mpi(elf) if dynamic else (set(), _static_mpi(elf))
    return Elf(
        path=name,
        machine=elf.get_machine_arch(),
        soname="".join(tags["DT_SONAME"][-1:]),
        needed=tuple(tags["DT_NEEDED"]),
        rpath=_folders(tags["DT_RPATH"]),
        runpath=_folders(tags["DT_RUNPATH"]),
        needs=_highest(elf, ".gnu.version_r"),
        offers=_highest(elf, ".gnu.version_d"),
        mpi_imports=tuple(sorted(imports)),
        mpi_exports=tuple(sorted(exports)),
        interpreter=next((s.get_interp_name() for s in _segments(elf, "PT_INTERP")), ""),
        build_id=_build_id(elf),
    )


def _tags(dynamic: Any) -> dict[str, list[str]]:
    """The strings of the dynamic section, by tag, in order."""
    wanted = ("DT_NEEDED", "DT_SONAME", "DT_RPATH", "DT_RUNPATH")
    values: dict[str, list[str]] = {kind: [] for kind in wanted}
    for tag in dynamic.iter_tags() if dynamic else ():
        kind = tag.entry.d_tag
        if kind in values:
            values[kind].append(getattr(tag, kind.removeprefix("DT_").lower()))
    return values


def _folders(paths: list[str]) -> tuple[str, ...]:
    """Of several tags the last one counts."""
    return tuple(filter(None, paths[-1].split(":"))) if paths else ()


def _segments(elf: ELFFile, kind: str) -> Iterator[Any]:
    return (s for s in elf.iter_segments() if s.header.p_type == kind)


def _dynamic_mpi(elf: ELFFile) -> tuple[set[str], set[str]]:
    """What ``.dynsym`` wants of an MPI, weak symbols left out, and what it defines of one."""
    imports: set[str] = set()
    exports: set[str] = set()
    table: Any = elf.get_section_by_name(".dynsym")
    strings: bytes = elf.get_section(table["sh_link"]).data() if table else b""
    if b"MPI_" not in strings:
        return imports, exports
    order = "<" if elf.little_endian else ">"
    # Elf64_Sym: name, info, other, shndx, value, size; Elf32_Sym has info after size.
    layout = struct.Struct(order + ("IBBHQQ" if elf.elfclass == 64 else "IIIBBH"))
    data: bytes = table.data()
    for entry in layout.iter_unpack(data[: len(data) // layout.size * layout.size]):
        info, index = (entry[1], entry[3]) if elf.elfclass == 64 else (entry[3], entry[5])
        end = strings.find(b"\0", entry[0])
        name = strings[entry[0] : end].decode("ascii", "replace")
        if _MPI_SYMBOL.fullmatch(name) or name in _MARKERS:
            if index != 0:
                exports.add(name)
            elif info >> 4 != 2:  # STB_WEAK
                imports.add(name)
    return imports, exports


def _static_mpi(elf: ELFFile) -> set[str]:
    """``MPI_*`` functions inside a program without a dynamic section (a static link)."""
    table: Any = elf.get_section_by_name(".symtab")
    if table is None or b"MPI_Init" not in elf.get_section(table["sh_link"]).data():
        return set()
    names = {s.name for s in table.iter_symbols() if s.entry.st_shndx != "SHN_UNDEF"}
    return {name for name in names if _MPI_SYMBOL.fullmatch(name)}


def _highest(elf: ELFFile, section_name: str) -> dict[str, str]:
    """The highest symbol version in a section, by prefix."""
    section: Any = elf.get_section_by_name(section_name)
    best: dict[str, str] = {}
    for _, versions in section.iter_versions() if section else ():
        for entry in versions:
            match = _VERSION.match(entry.name)
            if match and match[1] in _PREFIXES:
                prefix, version = match.groups()
                best[prefix] = newest([best.get(prefix, ""), version])
    return dict(sorted(best.items()))


def _build_id(elf: ELFFile) -> str:
    section: Any = elf.get_section_by_name(".note.gnu.build-id")
    notes = section.iter_notes() if section else ()
    return next((n["n_desc"] for n in notes if n["n_type"] == "NT_GNU_BUILD_ID"), "")
