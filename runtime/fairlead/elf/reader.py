"""ELF facts: what a file needs, offers and where it looks for it. No code of the file is run.

pyelftools reads headers and sections; the symbol table is unpacked here, because a TensorFlow
image holds libraries with 10^5 symbols and only those about MPI are wanted. Source: System V
gABI chapter 5 and the LSB's symbol versioning. :mod:`fairlead.image.scan` calls this for every file of a tree.
"""

from __future__ import annotations

import errno
import io
import mmap
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from fairlead.base.regular import open_regular
from fairlead.elf.facts import Elf
from fairlead.elf.mpi_standard import FORTRAN_RANKS, FORTRAN_STARTS

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

_MPI_SYMBOL = re.compile(r"P?MPI_[A-Z]\w*|p?mpi_[a-z]\w*")
_VERSION = re.compile(r"([A-Z]+)_(\d+(?:\.\d+)*)$")
_PREFIXES = ("GLIBC", "GLIBCXX", "CXXABI", "GFORTRAN", "FABRIC")
# Data objects that some MPIs export and others never do; see mpi_symbols.py.
_MARKERS = frozenset({"ompi_mpi_comm_world", "I_MPI_Check_image_status"})
# The first four letters of all these.
_BEGINNINGS = frozenset({b"MPI_", b"PMPI", b"mpi_", b"pmpi", b"ompi", b"I_MP"})
# What MPI_Init says when it fails, by family. A file that has such a text contains the MPI, stripped or not: launchers
# and tools, which link other parts of one, do not. Held against static programs of MPICH 4.0.2 and the tools of
# MPICH 3.4.3 and 5.0.2 and Open MPI 4.1.8.
TEXTS = (
    (b"MPI_Init(argc=%p", "mpich"),
    (b"MPI_Init(argc_p=%p", "mpich"),
    (b"ompi_mpi_init: ", "openmpi"),
    (b"mpi_init:startup:", "openmpi"),
)
# NCCL's own: two functions that every program calls, and what plugins export, by kind and version.
_NCCL = re.compile(
    rb"ncclGetVersion\0|ncclCommInitRank\0|ncclProfiler_v\d+\0|nccl(?:Net|CollNet|Tuner|Gin)Plugin_v\d+\0"
)
_STARTED = {"MPI_Init", "PMPI_Init", *FORTRAN_STARTS}
_WITNESS = "fairlead-witness.so"  # it defines PMPI_Init, as an MPI does; native/witness.flags
# What defines MPI_Init, or Fortran's name for it.
_INIT, _PMPI_INIT = re.compile(rb"MPI_Init\0"), re.compile(rb"PMPI_Init\0")
_FORTRAN_INIT, _FORTRAN_RANK = (
    re.compile(b"|".join(rb"%b\0" % name.encode() for name in sorted(names)))
    for names in (FORTRAN_STARTS, FORTRAN_RANKS)
)
_OPEN_MPI, _MPICH = re.compile(rb"ompi_mpi_comm_world\0"), re.compile(rb"\0MPI[RD]_")
# Linkers let a name share the end of a longer one, so what precedes it says nothing.
_FILTERS = ("DT_FILTER", "DT_AUXILIARY")
_OPENS = (b"dlopen\0", b"dlmopen\0")
_STARTS = (
    b"execl\0", b"execle\0", b"execlp\0", b"execv\0", b"execve\0", b"execvp\0", b"execvpe\0", b"execveat\0",
    b"posix_spawn\0", b"posix_spawnp\0", b"system\0", b"popen\0",
    b"syscall.Exec\0", b"syscall.forkExec\0", b"unix.Exec\0",  # Go's, as gosu has them
)  # fmt: skip
_WEAK = 2  # STB_WEAK
_LONGEST_NAME = 256
_PIECE = 8 << 20
_BIND_NOW, _NOW = 0x8, 0x1  # DF_BIND_NOW, DF_1_NOW
_PIE = 0x08000000  # DF_1_PIE, the only sign of a static-pie program
_LOAD, _DYNAMIC, _INTERP = 1, 2, 3  # PT_LOAD and so on


@dataclass(frozen=True)
class Symbols:
    """The dynamic symbols of a file.

    Attributes:
        defined: what it offers to others.
        needed: strong ones that it lacks and that must be found when it is loaded.
        called: strong ones that it lacks and that are looked up when they are first called.
        versioned: it has versions of symbols, and keeps old ones.
    """

    defined: frozenset[str]
    needed: frozenset[str]
    called: frozenset[str]
    versioned: bool


# pyelftools believes counts and sizes that a file gives. libtorch_cpu.so takes 2,500 reads and 30 MiB; its largest section is 12 MiB.
_MOST_READS = 1_000_000
_MOST_READ_BYTES = 1 << 30
_MOST_SEARCHED_BYTES = 4 << 30


class NotElf(ValueError):
    """The file is not an ELF file, or a damaged one."""


class TooCostly(NotElf):
    """Reading it would take more time or memory than any real file does."""


class _Bounded:
    """A file that can be read only so often, and only so much of it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._reads, self._bytes = _MOST_READS, _MOST_READ_BYTES
        self.seek, self.tell, self.fileno = stream.seek, stream.tell, stream.fileno
        self.refused = ""  # why; pyelftools may raise an error of its own for ours

    def read(self, size: int = -1) -> bytes:
        self._reads -= 1
        if size < 0 or size > self._bytes:
            self.refused = f"its tables have more than {_MOST_READ_BYTES >> 30} GiB"
        elif self._reads <= 0:
            self.refused = "its tables have more entries than real files"
        if self.refused:
            raise TooCostly(self.refused)
        data = self._stream.read(size)
        self._bytes -= len(data)
        return data


@contextmanager
def _opened(path: Path) -> Iterator[ELFFile]:
    """The file as pyelftools reads it; what is wrong with it becomes a NotElf, in the block too."""
    with open_regular(path, follow=True) as stream, _parsed(stream, str(path)) as elf:
        yield elf


@contextmanager
def _parsed(stream: IO[bytes], name: str) -> Iterator[ELFFile]:
    """:func:`_opened` of what is open already."""
    from elftools.elf.elffile import ELFFile  # 20 ms, and facts are mostly cached

    if stream.read(4) != b"\x7fELF":
        raise NotElf(f"{name} is not an ELF file")
    stream.seek(0)
    bounded = _Bounded(stream)
    try:
        yield ELFFile(cast(IO[bytes], bounded))
    except Exception as exc:
        if bounded.refused or isinstance(exc, TooCostly):
            raise TooCostly(f"{name}: {bounded.refused or exc}") from None
        # pyelftools trusts what it reads: damage shows as an error of any kind, among them
        # a seek to an impossible place. Only a failing disk is something else.
        if isinstance(exc, OSError) and exc.errno != errno.EINVAL:
            raise
        raise NotElf(f"{name} is a damaged ELF file: {exc}") from None


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
        NotElf: it is not an ELF file, is truncated, or contradicts itself; a TooCostly: as far as it was read.
        OSError: it cannot be read.
    """
    return replace(_read(_File.at(path)), path=shown_as or str(path))


def needed_by(content: bytes, name: str) -> tuple[str, ...]:
    """The libraries that a file is linked to of which only the content is there, as in an archive; ``name`` is for errors.

    Raises:
        NotElf: it is not an ELF file, or a damaged one.
    """
    with _parsed(io.BytesIO(content), name) as elf:
        dynamic: Any = _section(elf, ".dynamic") or next(_segments(elf, _DYNAMIC), None)
        return tuple(_tags(dynamic)["DT_NEEDED"])


@dataclass(frozen=True)
class _File:
    """A file under any of its names."""

    path: Path = field(compare=False)
    identity: tuple[int, ...]

    @classmethod
    def at(cls, path: Path) -> _File:
        now = path.stat()
        return cls(path, (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns))


@lru_cache(maxsize=1024)  # glibc is behind every library, and is asked for as often
def _read(file: _File) -> Elf:
    with _opened(file.path) as elf:
        return _facts(elf, str(file.path))


def symbols(path: Path) -> Symbols:
    """The dynamic symbols of the file at ``path``, but for those that :class:`Elf` has: ``MPI_*`` and the like.

    Raises:
        NotElf: it is not an ELF file, or a damaged one.
        OSError: it cannot be read.
    """
    return _symbols_of(_File.at(path))


@lru_cache(maxsize=16)  # hard links follow one another
def _symbols_of(file: _File) -> Symbols:
    with _opened(file.path) as elf:
        return _dynamic_symbols(elf)


def texts(path: Path, pattern: bytes) -> list[tuple[bytes, ...]]:
    """The groups of each match of a regular expression in the constants of an ELF file.

    Raises:
        NotElf: it is not an ELF file, or a damaged one.
        OSError: it cannot be read.
    """
    with _opened(path) as elf, _constants(elf) as (data, parts):
        looked = re.compile(pattern, re.DOTALL)
        matches = (m for begin, end in parts for m in looked.finditer(data, begin, end))
        return [match.groups() for match in matches]


def first_pointed_text(path: Path, symbol: str) -> str:
    """The text that the first member of an object points to: that of ``const char *name`` in C; empty if unknown.

    Raises:
        NotElf: it is not an ELF file, or a damaged one.
        OSError: it cannot be read.
    """
    with _opened(path) as elf, _constants(elf) as (data, _):
        if elf.elfclass != 64 or (place := _address_of(elf, symbol)) is None:
            return ""
        target = _relocated(elf, place)
        if target is None:
            offset = _offset_of(elf, place)
            raw = b"" if offset is None else data[offset : offset + 8]
            target = int.from_bytes(raw, "little" if elf.little_endian else "big")
        begin = _offset_of(elf, target) if target else None
        if begin is None:
            return ""
        text = data[begin : begin + _LONGEST_NAME].partition(b"\0")[0]
        return text.decode("ascii", "replace") if text.isascii() else ""


def _address_of(elf: ELFFile, symbol: str) -> int | None:
    strings, table = _names(elf), cast(Any, _section(elf, ".dynsym"))
    starts = {m.start() for m in re.finditer(re.escape(symbol.encode()) + rb"\0", strings)}
    value = 4 if elf.elfclass == 64 else 1
    entries = _symbols(elf, table) if table else iter(())
    return next((e[value] for e, _, index in entries if index and e[0] in starts), None)


def _relocated(elf: ELFFile, place: int) -> int | None:
    """What a relative relocation writes to an address; the other kinds name a symbol, and no text has one."""
    section: Any = _section(elf, ".rela.dyn")
    layout = struct.Struct(("<" if elf.little_endian else ">") + "QQq")
    data = _data(section) if section else b""
    for offset, info, addend in layout.iter_unpack(data[: len(data) // layout.size * layout.size]):
        if offset == place and not info >> 32:
            return cast(int, addend)
    return None


def _offset_of(elf: ELFFile, address: int) -> int | None:
    """Where in the file an address is."""
    for segment in _segments(elf, _LOAD):
        if 0 <= address - segment["p_vaddr"] < segment["p_filesz"]:
            return cast(int, segment["p_offset"] + address - segment["p_vaddr"])
    return None


def _dynamic_symbols(elf: ELFFile) -> Symbols:
    table: Any = _section(elf, ".dynsym")
    strings = _names(elf)
    lazy = _only_called(elf)
    defined, needed, called = set[str](), set[str](), set[str]()
    for number, (entry, info, index) in enumerate(_symbols(elf, table) if table else ()):
        name = strings[entry[0] : strings.find(b"\0", entry[0])].decode("ascii", "replace")
        if not name or _MPI_SYMBOL.fullmatch(name):
            continue
        if index != 0:
            defined.add(name)
        elif info >> 4 != _WEAK:
            (called if number in lazy else needed).add(name)
    versioned = _section(elf, ".gnu.version_d") is not None
    return Symbols(frozenset(defined), frozenset(needed), frozenset(called), versioned)


def _only_called(elf: ELFFile) -> set[int]:
    """Numbers of the symbols that the loader looks up at their first call: those with no other relocation."""
    dynamic: Any = _section(elf, ".dynamic")
    flags = {"DT_FLAGS": _BIND_NOW, "DT_FLAGS_1": _NOW}
    for tag in dynamic.iter_tags() if dynamic else ():
        kind, value = tag.entry.d_tag, tag.entry.d_val
        if kind == "DT_BIND_NOW" or value & flags.get(kind, 0):
            return set()
    if elf.elfclass != 64:
        return set()
    layout = struct.Struct(("<" if elf.little_endian else ">") + "QQq")  # Elf64_Rela

    def numbers(name: str) -> set[int]:
        section: Any = _section(elf, name)
        data = _data(section) if section else b""
        usable = data[: len(data) // layout.size * layout.size]
        return {info >> 32 for _, info, _ in layout.iter_unpack(usable)}

    return numbers(".rela.plt") - numbers(".rela.dyn")


def _facts(elf: ELFFile, name: str) -> Elf:
    dynamic: Any = _section(elf, ".dynamic")
    dynamic = dynamic or next(_segments(elf, _DYNAMIC), None)
    tags = _tags(dynamic)
    names = _names(elf)
    imports, exports = _dynamic_mpi(elf, names) if dynamic else (set(), set())
    interpreter = next((s.get_interp_name() for s in _segments(elf, _INTERP)), "")
    can_start = bool(interpreter or tags["DT_FLAGS_1"]) or elf.header.e_type == "ET_EXEC"
    can_start = can_start and not tags["DT_SONAME"]  # libraries may print their version
    # A filter's functions are those of the library that the loader opens for it (ld(1), -f and -F).
    opens = any(name in names for name in _OPENS) or bool(tags["DT_FILTER"] + tags["DT_AUXILIARY"])
    starts = can_start and _starts(elf, names if interpreter else None)
    nccl_exports = _nccl_exports(elf, names)
    del names  # before other names are read
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
        interpreter=interpreter,
        build_id=_build_id(elf),
        holds=""
        if _STARTED & imports or _WITNESS in tags["DT_SONAME"]
        else _held(elf, can_start, alone=not imports),
        can_start=can_start,
        opens=opens,
        starts=starts,
        nccl_exports=nccl_exports,
    )


def _nccl_exports(elf: ELFFile, names: bytes) -> tuple[str, ...]:
    """What identifies an NCCL or a plugin of one, of the symbols that a file defines."""
    if b"nccl" not in names:  # as in almost every file; the search for one word is far faster
        return ()
    wanted = {match.start(): match[0][:-1].decode() for match in _NCCL.finditer(names)}
    if not wanted:
        return ()
    table: Any = _section(elf, ".dynsym")
    defined = (entry[0] for entry, _, index in _symbols(elf, table) if index != 0)
    return tuple(sorted(wanted[start] for start in wanted.keys() & set(defined)))


def _starts(elf: ELFFile, names: bytes | None) -> bool:
    """Whether a program can start others; of a static one without symbols nothing is known, so it can."""
    if names is None:
        table: Any = _section(elf, ".symtab")
        names = elf.get_section(table["sh_link"]).data() if table else None
    return names is None or any(name in names for name in _STARTS)


def _names(elf: ELFFile) -> bytes:
    """The names in ``.dynsym``, each between two zeros."""
    table: Any = _section(elf, ".dynsym")
    return _data(elf.get_section(table["sh_link"])) if table else b""


def _data(section: Any) -> bytes:
    _has_content(section)
    content: bytes = section.data()
    return content


def _has_content(section: Any) -> None:
    """Raises NotElf: of such a section, pyelftools makes as many bytes as its header says."""
    if section["sh_type"] == "SHT_NOBITS" or section.compressed:
        raise NotElf(f"its section {section.name} has no content of its own")


def _held(elf: ELFFile, can_start: bool, *, alone: bool) -> str:
    """The family of the MPI whose code is in a file; empty when there is none.

    Dynamic symbols do not tell: a static library's functions are among them only if the file exports them. A library
    that defines MPI_Init alone may be a tracer; those of an MPI come with PMPI_Init.

    Args:
        alone: it calls nothing of an MPI. Else a program may only have Fortran's interface inside.
    """
    table: Any = _section(elf, ".symtab") or _section(elf, ".dynsym")
    signs = _places(elf, table, _INIT if can_start else _PMPI_INIT)
    if can_start and alone and _places(elf, table, _FORTRAN_RANK):
        signs |= _places(elf, table, _FORTRAN_INIT)
    inits = {sign + shift for sign in signs for shift in (0, -1)}
    defined = inits and any(e[0] in inits and index for e, _, index in _symbols(elf, table))
    if defined and _places(elf, table, _OPEN_MPI):
        return "openmpi"
    with _constants(elf) as (data, parts):
        for text, family in TEXTS:
            if any(data.find(text, begin, end) >= 0 for begin, end in parts):
                return family
    if defined:
        return "mpich" if _places(elf, table, _MPICH) else "unknown"
    return ""


def _places(elf: ELFFile, table: Any, pattern: re.Pattern[bytes]) -> set[int]:
    """Where a pattern matches in the names of a symbol table. They are read in pieces: libtensorflow_cc.so.2 has 175 MB."""
    if not table:
        return set()
    names: Any = elf.get_section(table["sh_link"])
    _has_content(names)
    places, size = set[int](), names["sh_size"]
    for begin in range(0, size, _PIECE):
        first = max(0, begin - _LONGEST_NAME)
        elf.stream.seek(names["sh_offset"] + first)
        piece = elf.stream.read(min(size, begin + _PIECE) - first)
        places.update(first + match.start() for match in pattern.finditer(piece))
    return places


@contextmanager
def _constants(elf: ELFFile) -> Iterator[tuple[mmap.mmap, list[tuple[int, int]]]]:
    """A file's content, and where in it constants are: from, to."""
    part: Any = _section(elf, ".rodata")
    if part:
        sized = [(part["sh_offset"], part["sh_size"])]
    else:
        sized = [(s["p_offset"], s["p_filesz"]) for s in _segments(elf, _LOAD)]
    with mmap.mmap(elf.stream.fileno(), 0, prot=mmap.PROT_READ) as data:
        parts = [(begin, min(begin + size, len(data))) for begin, size in sized]
        if sum(max(end - begin, 0) for begin, end in parts) > _MOST_SEARCHED_BYTES:
            raise TooCostly(f"it has more than {_MOST_SEARCHED_BYTES >> 30} GiB to search")
        yield data, parts


def _tags(dynamic: Any) -> dict[str, list[str]]:
    """The strings of the dynamic section, by tag, in order; of DT_FLAGS_1 only whether it says PIE, of filters that they are there."""
    wanted = ("DT_NEEDED", "DT_SONAME", "DT_RPATH", "DT_RUNPATH", "DT_FLAGS_1", *_FILTERS)
    values: dict[str, list[str]] = {kind: [] for kind in wanted}
    for tag in dynamic.iter_tags() if dynamic else ():
        kind = tag.entry.d_tag
        if kind == "DT_FLAGS_1":
            values[kind] += ["PIE"] if tag.entry.d_val & _PIE else []
        elif kind in _FILTERS:
            values[kind].append(kind)
        elif kind in values:
            values[kind].append(getattr(tag, kind.removeprefix("DT_").lower()))
    return values


def _folders(paths: list[str]) -> tuple[str, ...]:
    """Of several tags the last one counts."""
    return tuple(filter(None, paths[-1].split(":"))) if paths else ()


def _segments(elf: ELFFile, kind: int) -> Iterator[Any]:
    headers = _headers(elf, elf["e_phoff"], elf["e_phentsize"], elf.num_segments())
    return (elf.get_segment(n) for n, (first, _) in enumerate(headers) if first == kind)


def _section(elf: ELFFile, name: str) -> Any:
    """The last section of that name; None without one."""
    number = _numbers(elf).get(name.encode())
    return None if number is None else elf.get_section(number)


@lru_cache(maxsize=1)  # every name is asked for in turn
def _numbers(elf: ELFFile) -> dict[bytes, int]:
    """Section numbers by name. pyelftools parses every header of a file to find one."""
    count = elf.num_sections()
    if not count:
        return {}
    names = _data(elf.get_section(elf.get_shstrndx()))
    headers = _headers(elf, elf["e_shoff"], elf["e_shentsize"], count)
    return {names[at : names.find(b"\0", at)]: n for n, (at, _) in enumerate(headers)}


def _headers(elf: ELFFile, place: int, size: int, count: int) -> list[tuple[int, int]]:
    """The first two words of each header in a table: type and flags or address of a segment, name and type of a section."""
    elf.stream.seek(place)
    table = elf.stream.read(size * count)
    words = struct.Struct(f"{'<' if elf.little_endian else '>'}II{size - 8}x")
    return list(words.iter_unpack(table)) if count else []


def _dynamic_mpi(elf: ELFFile, strings: bytes) -> tuple[set[str], set[str]]:
    """What ``.dynsym`` wants of an MPI, weak symbols left out, and what it defines of one."""
    imports: set[str] = set()
    exports: set[str] = set()
    if not any(sign in strings for sign in (b"MPI_", b"mpi_")):
        return imports, exports
    table: Any = _section(elf, ".dynsym")
    for entry, info, index in _symbols(elf, table):
        if strings[entry[0] : entry[0] + 4] not in _BEGINNINGS:  # of hundreds of thousands, a few
            continue
        end = strings.find(b"\0", entry[0])
        name = strings[entry[0] : end].decode("ascii", "replace")
        if _MPI_SYMBOL.fullmatch(name) or name in _MARKERS:
            if index != 0:
                exports.add(name)
            elif info >> 4 != _WEAK:
                imports.add(name)
    return imports, exports


def _symbols(elf: ELFFile, table: Any) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """The entries of a symbol table, each with its info and its section's index (0: undefined)."""
    order = "<" if elf.little_endian else ">"
    # Elf64_Sym: name, info, other, shndx, value, size; Elf32_Sym has info after size.
    layout = struct.Struct(order + ("IBBHQQ" if elf.elfclass == 64 else "IIIBBH"))
    data = _data(table)
    for entry in layout.iter_unpack(data[: len(data) // layout.size * layout.size]):
        yield entry, *((entry[1], entry[3]) if elf.elfclass == 64 else (entry[3], entry[5]))


def _highest(elf: ELFFile, section_name: str) -> dict[str, str]:
    """The highest symbol version in a section, by prefix."""
    section: Any = _section(elf, section_name)
    best: dict[str, str] = {}
    for _, versions in section.iter_versions() if section else ():
        for entry in versions:
            match = _VERSION.match(entry.name)
            if match and match[1] in _PREFIXES:
                prefix, version = match.groups()
                best[prefix] = newest([best.get(prefix, ""), version])
    return dict(sorted(best.items()))


def _build_id(elf: ELFFile) -> str:
    section: Any = _section(elf, ".note.gnu.build-id")
    notes = section.iter_notes() if section else ()
    return next((n["n_desc"] for n in notes if n["n_type"] == "NT_GNU_BUILD_ID"), "")
