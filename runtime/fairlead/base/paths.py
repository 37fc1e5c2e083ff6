"""Where fairlead keeps files: XDG folders, and the data that ships with it.

Files and folders get their final name only through ``atomic_write`` and ``atomic_folder``: created
next to it, synced, renamed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_RESTED_S = 10.0
_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2  # flags of renameat2(2)
_NO_SUCH_RENAME = (errno.ENOSYS, errno.EINVAL)  # of NFS, Lustre
_PACKAGE = Path(__file__).resolve().parents[1]


def _xdg(variable: str, fallback: str, environ: Mapping[str, str]) -> Path:
    value = environ.get(variable, "")
    # The XDG specification says that relative values are to be ignored.
    base = Path(value) if value.startswith("/") else Path(environ.get("HOME") or "/") / fallback
    return base / "fairlead"


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Downloads, trees, images, facts: all of it can be deleted and comes back."""
    return _xdg("XDG_CACHE_HOME", ".cache", environ)


def data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """What fairlead installed for the user: a private Apptainer, a host MPI."""
    return _xdg("XDG_DATA_HOME", ".local/share", environ)


def config_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's own site profiles and settings."""
    return _xdg("XDG_CONFIG_HOME", ".config", environ)


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Measurements, which cannot be recreated and are not settings."""
    return _xdg("XDG_STATE_HOME", ".local/state", environ)


def checkout() -> Path | None:
    """The source checkout this package runs from, or None when it was installed as a wheel."""
    root = _PACKAGE.parent.parent
    return root if (root / "pyproject.toml").is_file() and (root / "sitecfg").is_dir() else None


def bundled(name: str) -> Path:
    """The folder of bundled data called ``name``: ``recipes`` or ``sitecfg``.

    A checkout's own folder wins, so that an edited recipe is seen at once.
    """
    root = checkout()
    return root / name if root else _PACKAGE / "_data" / name


def real(path: Path) -> Path:
    """``path`` with its symlinks followed; links in a circle stay as they are, for which ``resolve()`` raises RuntimeError."""
    return Path(os.path.realpath(path))


def resolve_in(root: Path, path: Path) -> Path | None:
    """``path`` (below ``root``) with symlinks followed as a process whose root is ``root`` would.

    None when a link dangles, loops, or leads out of the tree by way of a missing folder; for a name that no file has; and
    for what is in a folder that may not be searched.
    """
    try:
        return _resolve(root, path)
    except ValueError:  # it holds a NUL
        return None
    except OSError as exc:
        if exc.errno not in (errno.ENAMETOOLONG, errno.EACCES):
            raise
        return None


def _resolve(root: Path, path: Path) -> Path | None:
    pending = list(path.relative_to(root).parts)
    current = root
    hops = 0
    while pending:
        part = pending.pop(0)
        if part == "..":
            current = current.parent if current != root else root
            continue
        current = current / part
        if current.is_symlink():
            hops += 1
            if hops > 40:
                return None
            target = current.readlink()
            current = root if target.is_absolute() else current.parent
            pending = [p for p in target.parts if p != "/"] + pending
    return current if current.exists() else None


def is_device(path: Path) -> bool:
    """Whether ``path`` lies where the machine keeps devices and open files: nothing there may be replaced."""
    folder = Path(os.path.realpath(path.parent))
    above = (folder, *folder.parents)
    return Path("/dev/shm") not in above and (Path("/dev") in above or Path("/proc") in above)


@contextmanager
def atomic_write(path: Path, mode: str = "wb", permissions: int | None = None) -> Iterator[IO[Any]]:
    """Opens a temporary file next to ``path``, and renames it to ``path`` only if the block succeeds.

    Text is UTF-8, whatever the locale. What killed processes left of the same file is deleted.
    A device such as ``/dev/stdout`` is written to as it is.

    Args:
        permissions: of the file; those of the umask by default.
    Raises:
        OSError: as ``open``, ``fsync`` and ``rename`` do; nothing is left behind then.
    """
    if is_device(path):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        with os.fdopen(fd, mode, encoding=None if "b" in mode else "utf-8") as stream:
            yield stream
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    with suppress(OSError):  # a file system without locks: what is left there stays
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        with os.fdopen(fd, mode, encoding=None if "b" in mode else "utf-8") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if permissions is None:  # mkstemp's 0600 would hide the file from a group
            umask = os.umask(0)
            os.umask(umask)
            permissions = 0o666 & ~umask
        Path(name).chmod(permissions)
        Path(name).replace(path)
    except BaseException as exc:
        Path(name).unlink(missing_ok=True)
        # A write that finds the disk full does not say which: the message needs the folder.
        if isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT):
            exc.filename = exc.filename or str(path)
        raise


def _sweep(path: Path) -> None:
    """Removes files that killed processes were writing: no lock is held on them, and they have rested for a while.

    Between the creation of such a file and its lock is a moment, and some file systems lock on one node only.
    """
    with suppress(OSError), os.scandir(path.parent) as listing:
        for item in listing:
            if not (item.name.startswith(f".{path.name}.") and item.name.endswith(".partial")):
                continue
            with suppress(OSError):
                fd = os.open(item.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    status = os.fstat(fd)
                    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                        continue
                    if time.time() - status.st_mtime < _RESTED_S:
                        continue
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    Path(item.path).unlink()
                finally:
                    os.close(fd)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A new folder next to ``path`` that gets that name only if the block succeeds.

    What was at ``path`` before is replaced; what killed processes left next to it is deleted. So
    two processes must not make the same folder at once: hold :func:`locked`.

    Raises:
        OSError: nothing is left behind then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name}.*.partial"):
        shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
    try:
        tree = work / "new"
        tree.mkdir()
        yield tree
        for file in (p for p in tree.rglob("*") if p.is_file() and not p.is_symlink()):
            fd = os.open(file, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        if path.exists():
            path.rename(work / "old")
        tree.rename(path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """One process at a time inside the block; a killed one holds nothing.

    Args:
        path: the lock's own file; it stays.
        waiting: called once when another process is inside.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def rename_new(source: Path, target: Path) -> None:
    """Renames within a storage; replaces nothing, which ``rename`` would.

    A folder that is not writable is made writable for that.

    Raises:
        FileExistsError: ``target`` exists.
    """
    mode = source.lstat().st_mode
    is_folder = stat.S_ISDIR(mode)
    if is_folder:
        source.chmod(0o700)
    number = _renamed(source, target, _NOREPLACE)
    if number in _NO_SUCH_RENAME:
        if not is_folder:
            os.link(source, target, follow_symlinks=False)
            source.unlink()
        elif os.path.lexists(target):
            number = errno.EEXIST
        else:
            source.rename(target)  # over an empty folder at most
    if number not in (0, *_NO_SUCH_RENAME):
        raise OSError(number, os.strerror(number), str(source), None, str(target))
    if is_folder:
        target.chmod(mode & 0o7777)


def exchange(first: Path, second: Path) -> bool:
    """Each of two files gets the other's name, at once; False where the file system cannot do that, and nothing is done.

    Raises:
        FileNotFoundError: one of them is not there.
    """
    number = _renamed(first, second, _EXCHANGE)
    if number not in (0, *_NO_SUCH_RENAME):
        raise OSError(number, os.strerror(number), str(first), None, str(second))
    return not number


def _renamed(source: Path, target: Path, how: int) -> int:
    """The error of renameat2(2); 0 for none."""
    import ctypes  # every verb imports this module

    libc = ctypes.CDLL(None, use_errno=True)
    paths = (os.fsencode(source), os.fsencode(target))
    try:
        failed = libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], how)
    except AttributeError:  # a C library before glibc 2.28
        return errno.ENOSYS
    return ctypes.get_errno() if failed else 0
