"""Which file each file of a tree loads, and what can be started in it: by looking names up, as its loader would.

:mod:`fairlead.image.scan` reads the files; this joins them. Paths are real ones inside the tree.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path

from fairlead.base.launcher_names import in_python, in_shell
from fairlead.base.paths import resolve_in
from fairlead.base.regular import open_regular
from fairlead.base.shell_commands import LONGEST, commands, is_login_shells, is_shells
from fairlead.elf.facts import Elf, MpiLibrary
from fairlead.elf.loader import system_folders
from fairlead.elf.mpi_symbols import GLIBC_PIECES

# Links and scripts below them are not programs that a rank runs, and there are thousands.
_NO_PROGRAMS = ("/etc", "/var", "/usr/share", "/usr/include", "/usr/src", "/usr/lib/.build-id")
_MOST_OF_PROGRAM = 16 << 20  # of the names in a program
_PATH = re.compile(
    rb"(?<![\w./$}-])(?:(?:/[\w.+-]+){2,}|lib[\w+-]+\.so(?:\.\d+)*(?![\w./]))", re.ASCII
)
_LONGEST_SHEBANG = 127  # the kernel's; execve(2)


class Objects:
    """The ELF files of a tree.

    Args:
        files: by real path.
        links: symlinks of the tree, and what they lead to, both inside it.
    """

    def __init__(self, root: Path, files: Mapping[str, Elf], links: Mapping[str, str]) -> None:
        self._root, self._files = root, files
        self._names: dict[str, dict[str, str]] = {}
        self._anywhere: dict[str, list[str]] = {}
        self._real: dict[str, str] = {}
        self._nearest: dict[tuple[str, str, str], str] = {}
        for path, real in (*((p, p) for p in files), *links.items()):
            if real in files:
                folder, _, name = path.rpartition("/")
                self._names.setdefault(folder, {})[name] = real
        for path, elf in sorted(files.items()):
            for name in {elf.soname, path.rpartition("/")[2]} - {""}:
                self._anywhere.setdefault(name, []).append(path)

    @cached_property
    def needs(self) -> dict[str, dict[str, str]]:
        """By path: the real path of each library that the file needs, by name. The C library's are left out.

        What no folder of the loader has is taken from where it is: a variable may lead there.
        """
        return {
            path: {
                name: library
                for name in elf.needed
                if not GLIBC_PIECES.match(name) and (library := self._find(name, elf))
            }
            for path, elf in self._files.items()
        }

    @property
    def loaders(self) -> list[str]:
        """The real paths of the loaders that programs name, the one of most programs first."""
        named = Counter(
            e.interpreter for e in self._files.values() if e.interpreter and e.can_start
        )
        return [real for name, _ in named.most_common() if (real := self._resolved(name))]

    def leads(self, ends: Collection[str]) -> dict[str, dict[str, str]]:
        """Of :attr:`needs`, what leads to one of ``ends``."""
        users: dict[str, set[str]] = {}
        for path, needed in self.needs.items():
            for real in needed.values():
                users.setdefault(real, set()).add(path)
        reaching, pending = set(ends), list(ends)
        while pending:
            new = users.get(pending.pop(), set()) - reaching
            reaching |= new
            pending += new
        toward = {
            path: {name: real for name, real in self.needs[path].items() if real in reaching}
            for path in sorted(reaching)
        }
        return {path: needed for path, needed in toward.items() if needed}

    def among(self, users: Collection[str], wanted: Collection[str]) -> dict[str, dict[str, str]]:
        """Of :attr:`needs`, what leads from ``users`` to ``wanted`` at once."""
        objects = {
            path: {name: real for name, real in self.needs[path].items() if real in wanted}
            for path in sorted(users)
        }
        return {path: needed for path, needed in objects.items() if needed}

    def behind(self, path: str) -> list[Elf]:
        """All libraries behind a file, without itself, breadth first."""
        reached, pending = {path: None}, [path]
        for current in pending:  # grows
            for real in self.needs[current].values():
                if real not in reached:
                    reached[real] = None
                    pending.append(real)
        return [self._files[real] for real in list(reached)[1:]]

    def tied(self, elf: Elf, mpis: Collection[str]) -> tuple[str, ...]:
        """Those of ``mpis`` that a DT_RPATH of ``elf`` finds for itself, or for a library that it loads.

        A DT_RPATH holds for what is loaded behind its file too, but for libraries with a DT_RUNPATH (ld.so(8)); and
        for what a program opens.
        """
        folders = [self._names.get(self._resolved(f), {}) for f in elf.rpath_folders]
        asked = {*elf.needed}
        if any(folders):
            asked |= {n for e in self.behind(elf.path) if not e.runpath for n in e.needed}
        if elf.opens:
            asked |= {name for names in folders for name in names}
        tied = {names[name] for name in asked for names in folders if name in names}
        return tuple(sorted(tied.intersection(mpis)))

    def programs(
        self, scripts: Mapping[str, str], links: Mapping[str, str], mpis: Collection[str]
    ) -> dict[str, str]:
        """What can be started, as :class:`~fairlead.elf.facts.ImageFacts` has it.

        Args:
            scripts: first lines by path.
            links: symlinks, also to folders.
            mpis: links to these are kept too, for commands that name one.
        """
        programs = {path: self._kind(elf) for path, elf in self._files.items() if elf.can_start}
        programs |= scripts
        folders = {real.rpartition("/")[0] for real in programs}
        above = {str(p) for f in folders for p in (Path(f), *Path(f).parents)}
        for link, real in links.items():
            if link.startswith(_NO_PROGRAMS):
                continue
            if real in programs or real in above or real in mpis:
                programs[link] = f"-> {real}"
        return dict(sorted(programs.items()))

    def named(
        self, scripts: Iterable[str], programs: Collection[str], mpis: Iterable[MpiLibrary]
    ) -> dict[str, tuple[str, ...]]:
        """Of each script, those of ``programs`` and ``mpis`` that its text names, by a path, also through symlinks.

        And of each program that opens libraries itself; MPIs count by their names alone too.
        """
        called: dict[str, set[str]] = {}
        for mpi in mpis:
            for name in {*mpi.names, mpi.soname}:
                called.setdefault(name, set()).add(mpi.path)
        wanted = {*programs, *(path for paths in called.values() for path in paths)}
        openers = (path for path, elf in self._files.items() if elf.can_start and elf.opens)
        named = {}
        for path, most in (
            *((p, LONGEST) for p in scripts),
            *((p, _MOST_OF_PROGRAM) for p in openers if called),
        ):
            with open_regular(self._root / path.lstrip("/")) as stream:
                text = stream.read(most)
            if most == LONGEST:
                text = b"\n".join(
                    line for line in text.splitlines() if not line.lstrip().startswith(b"#")
                )
            words = {word.decode("ascii") for word in _PATH.findall(text)}
            by_path = {self._resolved(word) for word in words if "/" in word}
            by_name = (called[word] for word in words if word in called)
            if there := by_path.intersection(wanted).union(*by_name) - {path}:
                named[path] = tuple(sorted(there))
        return named

    def commands(self, scripts: Mapping[str, str]) -> dict[str, tuple[tuple[str, ...], ...]]:
        """Of each shell script, the commands that it starts, where its text names them all.

        Args:
            scripts: first lines by path.
        """
        by_path = {}
        for path, first in scripts.items():
            shell = is_shells(first) or is_login_shells(first)
            if not shell or path.startswith(_NO_PROGRAMS):
                continue
            with open_regular(self._root / path.lstrip("/")) as stream:
                text = stream.read(LONGEST)
            if len(text) == LONGEST:
                continue
            if there := commands(text.decode("utf-8", "replace")):
                by_path[path] = there
        return by_path

    def launchers(self, scripts: Mapping[str, str]) -> dict[str, str]:
        """Of each shell or Python script, the MPI launcher that its text names.

        Args:
            scripts: first lines by path.
        """
        by_path = {}
        for path, first in scripts.items():
            is_shell = is_shells(first) or is_login_shells(first)
            if path.startswith(_NO_PROGRAMS) or not (is_shell or "python" in first):
                continue
            with open_regular(self._root / path.lstrip("/")) as stream:
                text = stream.read(LONGEST).decode("utf-8", "replace")
            if named := in_shell(text) if is_shell else in_python(text):
                by_path[path] = named
        return by_path

    def _kind(self, elf: Elf) -> str:
        parts = (elf, *self.behind(elf.path))
        opens = any(e.opens for e in parts) and bool(elf.interpreter)
        python = any(name.startswith("libpython3") for e in parts for name in (e.soname, *e.needed))
        flags = {
            "opens": opens,
            "python": python,
            "starts": elf.starts,
            "static": not elf.interpreter,
        }
        return " ".join(name for name, is_so in flags.items() if is_so)

    def unfound(self, path: str) -> str:
        """A library that a file needs and its loader does not find by itself; empty if there is none."""
        elf = self._files[path]
        names = (n for n in elf.needed if not GLIBC_PIECES.match(n))
        return next((name for name in names if not self._searched(name, elf)), "")

    def lacking(self, path: str, mpis: Collection[str]) -> dict[str, str]:
        """Libraries that a file or one behind it needs and the tree has nowhere, each with the file that needs it.

        Args:
            mpis: of these nothing is asked, nor of Open MPI's inner libraries: another MPI may take their place.
        """
        if "/ld-musl" in self._files[path].interpreter:
            return {}  # musl's loader is the C library too, by any of its names
        lacking: dict[str, str] = {}
        reached, pending = {path}, [path]
        for current in pending:  # grows
            elf = self._files[current]
            if current in mpis or elf.name.startswith(("libopen-", "libopen_")):
                continue
            for name in elf.needed:
                real = self.needs[current].get(name, "")
                if not real and not GLIBC_PIECES.match(name):
                    lacking.setdefault(name, current)
                elif real and real not in reached:
                    reached.add(real)
                    pending.append(real)
        return lacking

    def preloaded(self, words: Iterable[str]) -> tuple[str, ...]:
        """The files of the tree that a list of libraries to preload names, in order."""
        real = (self._resolved(word) for word in words if "/" in word)
        return tuple(dict.fromkeys(path for path in real if path in self._files))

    def _searched(self, name: str, by: Elf) -> str:
        """What the loader finds without LD_LIBRARY_PATH."""
        if "/" in name:
            return self._resolved(name) if self._resolved(name) in self._files else ""
        for folder in (*by.rpath_folders, *by.runpath_folders, *self._system):
            real = self._names.get(self._resolved(folder), {}).get(name)
            if real and self._files[real].machine == by.machine:
                return real
        return ""

    def _find(self, name: str, by: Elf) -> str:
        if (real := self._searched(name, by)) or "/" in name:
            return real
        origin = by.path.rpartition("/")[0]
        if (asked := (name, by.machine, origin)) not in self._nearest:
            same = (p for p in self._anywhere.get(name, ()) if self._files[p].machine == by.machine)
            nearest = min(same, key=lambda p: (p.rpartition("/")[0] != origin, p), default="")
            self._nearest[asked] = nearest
        return self._nearest[asked]

    @cached_property
    def _system(self) -> tuple[str, ...]:
        return tuple("/" + str(f.relative_to(self._root)) for f in system_folders(self._root))

    def _resolved(self, path: str) -> str:
        """The real path of a path in the tree; empty when nothing is there."""
        if path not in self._real:
            inside = posixpath.normpath("/" + path).lstrip("/")
            real = resolve_in(self._root, self._root / inside)
            self._real[path] = "/" + str(real.relative_to(self._root)) if real else ""
        return self._real[path]


def target_of(root: Path, link: Path) -> str:
    """The real path inside ``root`` that a symlink leads to; empty for none that matters here, or a dangling one."""
    inside = "/" + str(link.relative_to(root))
    if ".so" not in link.name and inside.startswith(_NO_PROGRAMS):
        return ""
    real = resolve_in(root, link)
    return "/" + str(real.relative_to(root)) if real else ""


def first_line(path: Path) -> str:
    """``#!`` and its words, of a script; empty for another file."""
    with open_regular(path) as stream:
        line = stream.read(_LONGEST_SHEBANG).split(b"\n")[0]
    return line.decode("utf-8", "replace").strip() if line.startswith(b"#!") else ""
