"""Local files that a Containerfile or a definition copies into an image: they become [files]."""

from __future__ import annotations

import lzma
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

from fairlead.base.paths import real
from fairlead_build.importing.ledger import Ledger

# More files than anyone lists by hand.
_MOST = 300
# Folders that every Debian has: what is copied to one of them lands inside.
_THERE = {"/", "/etc", "/etc/profile.d", "/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/usr",
          "/var", "/var/tmp", "/var/lib", "/var/cache", "/usr/src",
          *(f"{top}{n}" for top in ("/", "/usr/", "/usr/local/") for n in ("bin", "lib", "sbin")),
          *(f"{top}/{n}" for top in ("/usr", "/usr/local") for n in ("include", "share")),
          "/usr/local", "/usr/local/etc", "/usr/local/src"}  # fmt: skip


class Context:
    """The folder of the file that is read, and what of it goes into the image.

    Attributes:
        docker: as COPY does it: sources lie in the folder, a folder's contents are copied, and links
            stay links. Otherwise as `cp -rL` does it.
        executable: the mode that files get which are copied next; None for what each file has.
    """

    executable: bool | None = None

    def __init__(self, folder: Path, ledger: Ledger, *, docker: bool):
        self.folder, self.ledger, self.docker = folder, ledger, docker

    def copy(self, source: str, place: str, *, into: bool) -> Iterator[tuple[str, str]]:
        """Lays ``source`` at ``place``; yields each part that cannot be, and why.

        Args:
            into: ``place`` is a folder that it lands in.
        """
        matches = self._matches(source)
        if not matches:
            yield source, "there is no such file next to it"
        for path in matches:
            if path.is_dir():
                inside = not self.docker and (into or self._is_there(place))
                yield from self._tree(path, f"{place}/{path.name}" if inside else place)
            else:
                inside = into or self._is_there(place) or len(matches) > 1
                yield from self._lay(path, f"{place}/{path.name}" if inside else place)

    def mounted(self, source: str) -> Callable[[str], Path | None] | None:
        """What a mount of ``source`` shows: the file below it of a name, or itself. None: there is no such source."""
        at = next(iter(self._matches(source)), None)
        if at is None or re.search(r"[*?\[]", source):
            return None

        def file(below: str) -> Path | None:
            path = at / below if below else at
            shown = os.path.relpath(path, self.folder)
            inside = real(path).is_relative_to(real(self.folder))
            return path if inside and path.is_file() and shown not in self._ignored else None

        return file

    def holds_archive(self, source: str) -> bool:
        """Whether ADD unpacks a file that ``source`` names: it looks at what is in it."""
        name = re.search(r"\.(tar|tgz|tbz2?|txz)(\.\w+)?$", source)
        return bool(name) or any(p.is_file() and _is_tar(p) for p in self._matches(source))

    def _is_there(self, place: str) -> bool:
        """Whether ``place`` is certainly a folder of the image."""
        return place in _THERE or place in self.ledger.folders

    def write(self, target: str, text: str, executable: bool) -> str:
        """Lays a file with this text at ``target``; why it cannot be, or nothing."""
        path = Path(tempfile.mkdtemp(prefix="text-", dir=self.ledger.scratch), "text")
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        return self.ledger.add_file(target, path, executable)

    def _matches(self, source: str) -> list[Path]:
        text = os.path.normpath(source)
        if self.docker:
            # Nothing outside the context can be named: `/` and `..` lead to its own top.
            text = re.sub(r"^(\.\./|\.\.$|/)+", "", text) or "."
        top = Path("/") if text.startswith("/") else self.folder
        text = text.lstrip("/")
        try:
            if re.search(r"[*?\[]", text):
                return sorted(top.glob(text))
            return [top / text] if os.path.lexists(top / text) else []
        except (OSError, ValueError, NotImplementedError):
            return []

    def _tree(self, folder: Path, place: str) -> Iterator[tuple[str, str]]:
        shown = os.path.relpath(folder, self.folder)
        paths = sorted(p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())
        paths = [p for p in paths if os.path.relpath(p, self.folder) not in self._ignored]
        if not paths:
            yield shown, "it is an empty folder"
        elif len(paths) > _MOST:
            yield shown, f"it holds {len(paths)} files, too many to be named one by one"
        else:
            for path in paths:
                yield from self._lay(path, f"{place}/{path.relative_to(folder)}")

    def _lay(self, path: Path, target: str) -> Iterator[tuple[str, str]]:
        shown = os.path.relpath(path, self.folder)
        target = str(PurePosixPath(target.replace("//", "/")))
        if shown in self._ignored:
            yield shown, "`.dockerignore` leaves it out"
        elif self.docker and path.is_symlink():
            yield shown, "it is a link; [files] holds files only"
        elif not path.is_file() or not os.access(path, os.R_OK):
            yield shown, "it is not a file that can be read"
        elif why := self.ledger.add_file(target, path, self.executable):
            yield f"{shown} to {target}", why

    @cached_property
    def _ignored(self) -> set[str]:
        """What `.containerignore` or `.dockerignore` leaves out."""
        names = (".containerignore", ".dockerignore") if self.docker else ()
        file = next((self.folder / n for n in names if (self.folder / n).is_file()), None)
        if file is None:
            return set()
        from docker.utils.build import exclude_paths

        lines = file.read_text("utf-8", "replace").splitlines()
        patterns = [line.strip() for line in lines if line.strip() and line[0] != "#"]
        kept: set[str] = exclude_paths(str(self.folder), patterns)
        return {os.path.relpath(p, self.folder) for p in self.folder.rglob("*")} - kept


def _is_tar(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError):
        return False
