"""Compiled parts of fairlead: the collective core, the witness of a launch, and the proof of NCCL's plugins.

A wheel ships them for the processors that ``tools/native_libraries.py`` lists. In a checkout, and on other
processors, this machine's compilers make them from their source when they are first needed. Either way they end up
in the cache, which runs show to their containers.

None of them links a library, so one file runs in every image, whatever its C library and its MPI.
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

SOURCE = Path(__file__).with_name("witness.c")
CORE, WITNESS, WIRE = "libfairlead_comm.so", "witness.so", "wire.so"
TENSORFLOW = "libfairlead_tensorflow.so"  # the core's operation
WITNESS_OF_CALLS = "witness-calls.so"  # for an MPI whose handles are not known: see witness.c
_WIRE_SOURCE = SOURCE.with_name("wire.c")
_SHIPPED = Path(__file__).with_name("lib")


def shipped(name: str) -> Path | None:
    """A library that this installation brings, or None, by its name: :data:`CORE` and so on."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32 or sys.byteorder != "little":
        return None
    path = _SHIPPED / platform.machine() / name
    return path if path.is_file() else None


def witness_path(cache: Path, *, calls: bool = False) -> Path:
    """Where the witness is kept, or will be: a name for each source and processor.

    Args:
        calls: that of :data:`WITNESS_OF_CALLS`.
    """
    name = WITNESS_OF_CALLS if calls else WITNESS
    if own := shipped(name):
        return _kept(cache, Path(name).stem, [own], ())
    return _kept(cache, Path(name).stem, [SOURCE], _witness_flags(calls))


def core_folder() -> Path:
    """The source of the collective core, and its header in ``include``."""
    root = checkout()
    return root / "runtime" / "native" if root else Path(__file__).parents[1] / "_data" / "native"


def wire_path(cache: Path) -> Path:
    """Where what drives plugins of NCCL is kept, or will be."""
    if own := shipped(WIRE):
        return _kept(cache, "wire", [own], ())
    return _kept(cache, "wire", [_WIRE_SOURCE], _flags_of(_WIRE_SOURCE))


def core_path(cache: Path) -> Path:
    """Where the collective core is kept, or will be: a name for each source and processor."""
    if own := shipped(CORE):
        return _kept(cache, "libfairlead_comm", [own], ())
    folder = core_folder()
    files = [*sorted((folder / "src").iterdir()), folder / "include" / "fairlead_comm.h"]
    return _kept(cache, "libfairlead_comm", files, _core_flags())


def tensorflow_path(cache: Path) -> Path:
    """Where the core's operation for TensorFlow is kept, or will be."""
    if own := shipped(TENSORFLOW):
        return _kept(cache, "libfairlead_tensorflow", [own], ())
    folder = core_folder()
    files = [folder / "tensorflow/operation.cpp", folder / "src/platform.h"]
    files.append(folder / "include/fairlead_comm.h")
    return _kept(cache, "libfairlead_tensorflow", files, _core_flags())


def tensorflow_available(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The operation that this installation brings, or that was compiled before; None where there is none."""
    from fairlead.base.paths import cache_dir

    try:
        path = shipped(TENSORFLOW) or tensorflow_path(cache_dir(environ))
    except OSError:  # an installation without the source
        return None
    return path if path.is_file() else None


def witness_available(cache: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether :func:`ensure_witness` has a library to copy, or a compiler to call."""
    return bool(shipped(WITNESS) or witness_path(cache).is_file() or compiler(environ))


def wire_available(cache: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """As :func:`witness_available`, for :func:`ensure_wire`."""
    return bool(shipped(WIRE) or wire_path(cache).is_file() or compiler(environ))


def core_available(cache: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """As :func:`witness_available`, for :func:`ensure_core`."""
    try:
        return bool(shipped(CORE) or core_path(cache).is_file() or cxx_compiler(environ))
    except OSError:  # an installation without the core's source; a launch says so
        return bool(cxx_compiler(environ))


def _witness_flags(calls: bool) -> tuple[str, ...]:
    """It must bind to whatever C library an image has: no library is linked, so no version is needed."""
    return (*_flags_of(SOURCE), *(["-DCALLS"] if calls else []))


def _flags_of(source: Path) -> tuple[str, ...]:
    return tuple(source.with_suffix(".flags").read_text("utf-8").split())


def _core_flags() -> tuple[str, ...]:
    """No contraction: every instruction set gives the same bits. No guards of statics, exceptions or type
    information: they would need libstdc++.
    """
    return tuple((core_folder() / "flags").read_text("utf-8").split())


def _kept(cache: Path, stem: str, files: Sequence[Path], flags: Sequence[str]) -> Path:
    state = hashlib.sha256(repr(flags).encode())
    for path in files:
        state.update(path.read_bytes())
    return cache / "native" / f"{stem}-{platform.machine()}-{state.hexdigest()[:16]}.so"


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


def ensure_witness(
    cache: Path, environ: Mapping[str, str] = os.environ, *, calls: bool = False
) -> Path:
    """The witness in the cache: copied or compiled unless it is there, with the digest that it had when it was made.

    Args:
        calls: as of :func:`witness_path`.
    Raises:
        FairleadError: exit code 123; there is no compiler, it fails, or the cache cannot be written. Exit code 121;
            others can write there.
    """
    made = witness_path(cache, calls=calls)
    if _is_there(made, cache, WITNESS_OF_CALLS if calls else WITNESS, "witness"):
        return made
    words = [*compiler(environ), *_witness_flags(calls), str(SOURCE)]
    return _compiled(made, words, "native-witness-failed")


def ensure_core(cache: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The collective core in the cache: as :func:`ensure_witness`.

    Raises:
        FairleadError: exit code 123; there is no C++17 compiler, it fails, or the cache cannot be written. Exit code
            121; others can write there.
    """
    made = core_path(cache)
    if _is_there(made, cache, CORE, "comm-core"):
        return made
    folder = core_folder()
    sources = map(str, sorted((folder / "src").glob("*.cpp")))
    inputs = ["-I", str(folder / "include"), *sources, "-lgcc"]
    return _compiled(made, [*cxx_compiler(environ), *_core_flags(), *inputs], "native-core-failed")


def ensure_tensorflow(cache: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The core's operation for TensorFlow in the cache, which needs no TensorFlow to be compiled: as :func:`ensure_core`.

    Raises:
        FairleadError: as of :func:`ensure_core`.
    """
    made = tensorflow_path(cache)
    if _is_there(made, cache, TENSORFLOW, "comm-core"):
        return made
    folder = core_folder()
    inputs = ["-I", str(folder / "include"), str(folder / "tensorflow/operation.cpp"), "-lgcc"]
    return _compiled(made, [*cxx_compiler(environ), *_core_flags(), *inputs], "native-core-failed")


def ensure_wire(cache: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """What drives a plugin of NCCL, in the cache: as :func:`ensure_witness`.

    Raises:
        FairleadError: exit codes as of :func:`ensure_witness`.
    """
    made = wire_path(cache)
    if _is_there(made, cache, WIRE, "nccl-wire"):
        return made
    words = [*compiler(environ), *_flags_of(_WIRE_SOURCE), str(_WIRE_SOURCE)]
    return _compiled(made, words, "native-wire-failed")


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


def _is_there(made: Path, cache: Path, name: str, check: str) -> bool:
    """Whether a library is in the cache whole, or was copied there from those that fairlead ships."""
    refuse_exposed(made.parent, cache)
    if _is_whole(made):
        return True
    if own := shipped(name):
        _copied(own, made, check)
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
