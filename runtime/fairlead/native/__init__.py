"""Compiled parts of fairlead: the collective core, the witness of a launch, and the proof of NCCL's plugins.

:mod:`fairlead.native.libraries` lists them. A wheel ships them for the processors that ``tools/native_libraries.py``
lists. In a checkout, and on other processors, this machine's compilers make them from their source when they are first
needed. Either way they end up in the cache, which runs show to their containers.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairlead.base.errors import fail, os_error_as
from fairlead.base.exposure import refuse_exposed
from fairlead.base.paths import atomic_write, checkout
from fairlead.native.libraries import (
    CORE,
    TENSORFLOW,
    WIRE,
    WITNESS,
    WITNESS_OF_CALLS,
    Library,
    witness,
)

__all__ = [
    "CORE", "SOURCES", "TENSORFLOW", "WIRE", "WITNESS", "WITNESS_OF_CALLS", "available", "compiler", "core_folder",
    "cxx_compiler", "ensure", "path_of", "present", "shipped", "witness",
]  # fmt: skip
SOURCES = Path(__file__).parent  # of all but the core
_SHIPPED = SOURCES / "lib"


def shipped(library: Library) -> Path | None:
    """The file that this installation brings, or None."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32 or sys.byteorder != "little":
        return None
    path = _SHIPPED / platform.machine() / library.name
    return path if path.is_file() else None


def core_folder() -> Path:
    """The source of the collective core, and its header in ``include``."""
    root = checkout()
    return root / "runtime" / "native" if root else SOURCES.parent / "_data" / "native"


def path_of(library: Library, cache: Path) -> Path:
    """Where a library is kept, or will be: a name for each source and processor.

    Raises:
        OSError: this installation has neither the library nor its source.
    """
    own = shipped(library)
    files = [own] if own else [*_files(library, library.sources), *_files(library, library.headers)]
    state = hashlib.sha256(repr(() if own else _flags(library)).encode())
    for path in files:
        state.update(path.read_bytes())
    return cache / "native" / f"{library.stem}-{platform.machine()}-{state.hexdigest()[:16]}.so"


def present(library: Library, cache: Path) -> Path | None:
    """The library that this installation brings, or that was made before; None where there is none."""
    try:
        path = shipped(library) or path_of(library, cache)
    except OSError:  # an installation without the source
        return None
    return path if path.is_file() else None


def available(library: Library, cache: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether :func:`ensure` has a library to copy, or a compiler to call; a launch says where its source is missing."""
    return bool(present(library, cache) or _compiler_of(library, environ))


def _folder(library: Library) -> Path:
    return core_folder() if library.core else SOURCES


def _files(library: Library, patterns: Sequence[str]) -> list[Path]:
    """What patterns name, sorted.

    Raises:
        FileNotFoundError: one names nothing.
    """
    folder, paths = _folder(library), list[Path]()
    for pattern in patterns:
        own = sorted(folder.glob(pattern))
        if not own:
            raise FileNotFoundError(2, os.strerror(2), str(folder / pattern))
        paths += own
    return paths


def _flags(library: Library) -> tuple[str, ...]:
    return (*(_folder(library) / library.flags).read_text("utf-8").split(), *library.more)


def _compiler_of(library: Library, environ: Mapping[str, str]) -> tuple[str, ...]:
    return cxx_compiler(environ) if library.language == "c++" else compiler(environ)


def compiler(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The words that start the C compiler: ``$CC``, else cc, gcc or clang on PATH; () without one."""
    return _first((environ.get("CC", ""), "cc", "gcc", "clang"), environ)


def cxx_compiler(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """As :func:`compiler`, for C++: ``$CXX``, c++ or g++. Clang ignores how the kernels choose an instruction set."""
    return _first((environ.get("CXX", ""), "c++", "g++"), environ)


def _first(names: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    for text in names:
        words = shlex.split(text)
        if words and shutil.which(words[0], path=environ.get("PATH", os.defpath)):
            return tuple(words)
    return ()


def ensure(library: Library, cache: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """A library in the cache: copied or compiled unless it is there, with the digest that it had when it was made.

    Raises:
        FairleadError: exit code 123; there is no compiler, it fails, or the cache cannot be written. Exit code 121;
            others can write there.
        OSError: as :func:`path_of`.
    """
    made = path_of(library, cache)
    if _is_there(made, cache, library):
        return made
    words = [*_compiler_of(library, environ), *_flags(library)]
    if library.include:
        words += ["-I", str(_folder(library) / library.include)]
    words += map(str, _files(library, library.sources))
    if library.language == "c++":
        words.append("-lgcc")  # what a processor's instructions lack
    return _compiled(made, words, library.failed)


def _digest_file(made: Path) -> Path:
    return made.with_suffix(".sha256")


def _note(made: Path) -> None:
    with atomic_write(_digest_file(made)) as out:
        out.write(hashlib.sha256(made.read_bytes()).hexdigest().encode())


def _is_whole(made: Path) -> bool:
    """Whether a library has the digest that it had when it was made: it is about to be mapped into every rank."""
    try:
        return hashlib.sha256(made.read_bytes()).hexdigest().encode() == (
            _digest_file(made).read_bytes()
        )
    except OSError:
        return False


def _is_there(made: Path, cache: Path, library: Library) -> bool:
    """Whether a library is in the cache whole, or was copied there from those that fairlead ships."""
    refuse_exposed(made.parent, cache)
    if _is_whole(made):
        return True
    if own := shipped(library):
        _copied(own, made, library.check)
    return own is not None


def _copied(source: Path, made: Path, check: str) -> None:
    unwritable = os_error_as(
        "native-cache-unwritable", check=check, source_name=source.name, made_parent=made.parent
    )
    with unwritable:
        with atomic_write(made, permissions=0o755) as out:  # as a linker leaves it
            out.write(source.read_bytes())
        _note(made)


def _compiled(made: Path, words: Sequence[str], message: str) -> Path:
    from fairlead.base.process import run  # ranks do not compile

    made.parent.mkdir(parents=True, exist_ok=True)
    partial = made.with_name(f".{made.name}.{os.getpid()}")
    argv = [*words, "-o", str(partial)]
    try:
        ran = run(argv, timeout_s=180)
        if ran.returncode == 0:
            partial.replace(made)
            _note(made)
            return made
    finally:
        partial.unlink(missing_ok=True)
    why = (ran.stderr.strip() or f"it ended with code {ran.returncode}")[-300:]
    raise fail(message, argv=shlex.join(argv), why=why)
