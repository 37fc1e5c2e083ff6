"""The dynamic loader, retraced: which file a library gets when it asks for another by name.

Order of ld.so(8): DT_RPATH (without DT_RUNPATH), LD_LIBRARY_PATH, DT_RUNPATH, what /etc/ld.so.conf
names, then the loader's own folders. It works on a root folder, which need not be this machine's.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from pathlib import Path

from fairlead.base.paths import resolve_in
from fairlead.base.regular import open_regular
from fairlead.elf import reader as elf_file
from fairlead.elf.facts import Elf
from fairlead.elf.mpi_symbols import GLIBC_PIECES
from fairlead.elf.reader import NotElf

_MOST_CONFS = 1000
_MOST_CONF_BYTES = 1 << 20


@dataclass(frozen=True)
class Loader:
    """The loader of the system in ``root``.

    Attributes:
        library_path: LD_LIBRARY_PATH.
        more: folders that are searched after all others.
        first: folders that are searched before the system's, as a module would add them to LD_LIBRARY_PATH.
    """

    library_path: str = ""
    root: Path = Path("/")
    more: tuple[Path, ...] = ()
    first: tuple[Path, ...] = ()

    def closure(self, roots: list[Path]) -> tuple[list[Elf], list[tuple[str, str]]]:
        """Everything needed behind ``roots``, breadth first, and ``(name, needed by)`` for what is not there.

        The C library's own pieces are left out.
        """
        visited: dict[str, Elf] = {}
        missing: list[tuple[str, str]] = []
        queue = list(roots)
        while queue:
            path = queue.pop(0)
            if str(path) in visited:
                continue
            facts = elf_file.read(path, str(path))
            visited[str(path)] = facts
            for name in facts.needed:
                if GLIBC_PIECES.match(name):
                    continue
                real = self.find(name, facts)
                if real is None:
                    missing.append((name, facts.path))
                else:
                    queue.append(real)
        return list(visited.values()), missing

    def find(self, name: str, by: Elf) -> Path | None:
        """The real file that ``by`` gets when it needs ``name``; None when there is none."""
        search = [self._within(p) for p in by.rpath_folders]
        search += [p for p in self.library_path.split(":") if p]
        search += [self._within(p) for p in by.runpath_folders]
        for folder in [*map(Path, search), *self.first, *self._system, *self.more]:
            candidate = folder / name
            try:
                real = self.real(candidate)
                if real and real.is_file() and elf_file.read(real).machine == by.machine:
                    return real
            except (NotElf, OSError):
                continue
        return None

    def real(self, path: Path) -> Path | None:
        """``path`` without symlinks, which lead to where they would in a system with this root."""
        if self.root != Path("/") and path.is_relative_to(self.root):
            return resolve_in(self.root, path)
        return path.resolve()

    def _within(self, folder: str) -> str:
        """A folder that a library names, where the system that it belongs to is mounted."""
        there = self.root == Path("/") or Path(folder).is_relative_to(self.root)
        return folder if there else str(self.root / folder.lstrip("/"))

    @cached_property
    def _system(self) -> list[Path]:
        return system_folders(self.root)


def system_folders(root: Path = Path("/")) -> list[Path]:
    """What ``/etc/ld.so.conf`` names, then the loader's built-in folders."""
    folders: list[Path] = []
    pending, visited = [root / "etc/ld.so.conf"], set[Path]()
    while pending and len(visited) < _MOST_CONFS:
        conf = resolve_in(root, pending.pop(0))
        if conf is None or conf in visited:
            continue
        visited.add(conf)
        for line in _text(conf).splitlines():
            words = line.split("#")[0].split()
            if len(words) == 2 and words[0] == "include":
                pending = [*_matching(root, Path("etc", words[1])), *pending]
            elif words:
                folders.append(root / words[0].lstrip("/"))
    # Debian's loader has its own folders built in, whatever the file says.
    folders += [f for p in ("lib", "usr/lib") for f in sorted((root / p).glob("*-linux-gnu"))]
    folders += [root / p for p in ("lib", "usr/lib", "lib64", "usr/lib64")]
    return [f for f in dict.fromkeys(folders) if os.path.isdir(f)]  # noqa: PTH112


def _text(conf: Path) -> str:
    try:
        with open_regular(conf) as stream:
            return stream.read(_MOST_CONF_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _matching(root: Path, pattern: Path) -> list[Path]:
    """The files that an include line means. Only the last part may have wildcards, as in every distribution."""
    parts = [part for part in pattern.parts if part != "/"]
    if not parts or any(set(part) & set("*?[") for part in parts[:-1]):
        return []
    folder = resolve_in(root, root.joinpath(*parts[:-1]))
    if folder is None:
        return []
    with suppress(OSError), os.scandir(folder) as listing:
        names = [item.name for item in islice(listing, _MOST_CONFS)]
        return [folder / name for name in sorted(names) if fnmatchcase(name, parts[-1])]
    return []
