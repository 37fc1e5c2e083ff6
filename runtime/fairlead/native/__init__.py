"""Compiled parts of fairlead, made from their source by this machine's compilers when first needed.

Neither links a library, so what is compiled once runs in every image, whatever its C library and its MPI.
An image's bytes must not depend on this machine's compiler: where an image has a core of its own, the compiler
of its lock has made it (``runtime/native/compile.sh``).
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairlead.base.errors import ExitCode, FairleadError, fail
from fairlead.base.paths import checkout

SOURCE = Path(__file__).with_name("witness.c")
# It must bind to whatever C library an image has: no library is linked, so no version is needed.
_FLAGS = (
    "-std=c11", "-O2", "-fPIC", "-shared", "-nostdlib", "-fno-builtin", "-fno-stack-protector",
    "-fvisibility=hidden", "-Wl,--hash-style=both",
)  # fmt: skip


def witness_path(cache: Path) -> Path:
    """Where the witness is kept, or will be: a name for each source and processor."""
    return _kept(cache, "witness", [SOURCE], _FLAGS)


def core_folder() -> Path:
    """The source of the collective core, and its header in ``include``."""
    root = checkout()
    return root / "runtime" / "native" if root else Path(__file__).parents[1] / "_data" / "native"


def core_path(cache: Path) -> Path:
    """Where the collective core is kept, or will be: a name for each source and processor."""
    folder = core_folder()
    files = [*sorted((folder / "src").iterdir()), folder / "include" / "fairlead_comm.h"]
    return _kept(cache, "libfairlead_comm", files, _core_flags())


def _core_flags() -> tuple[str, ...]:
    """No contraction: every instruction set gives the same bits. No guards of statics, exceptions or type
    information: they would need libstdc++. libgcc is the static one, which tells the processor's kind.
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
    """As :func:`compiler`, for C++: ``$CXX``, c++, g++ or clang++."""
    return _first((environ.get("CXX", ""), "c++", "g++", "clang++"), environ)


def _first(names: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    for text in names:
        words = shlex.split(text)
        if words and shutil.which(words[0], path=environ.get("PATH", os.defpath)):
            return tuple(words)
    return ()


def ensure_witness(cache: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The witness, compiled unless it is there.

    Raises:
        FairleadError: exit code 123; there is no compiler, or it fails.
    """
    made = witness_path(cache)
    return _ensure(
        made,
        [*compiler(environ), *_FLAGS, str(SOURCE)],
        "the witness of a launch cannot be compiled",
        "install a C compiler (gcc), name a working one in CC, or prove by a job of its own: --probe",
        "witness",
    )


def ensure_core(cache: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The collective core, compiled unless it is there.

    Raises:
        FairleadError: exit code 123; there is no C++17 compiler, or it fails.
    """
    made = core_path(cache)
    folder = core_folder()
    sources = map(str, sorted((folder / "src").glob("*.cpp")))
    return _ensure(
        made,
        [*cxx_compiler(environ), *_core_flags(), "-I", str(folder / "include"), *sources, "-lgcc"],
        "the collective core cannot be compiled",
        "install a C++ compiler (g++), name a working one in CXX, or let mpi4py carry the gradients:"
        " FAIRLEAD_COMM_BACKEND=mpi4py",
        "comm-core",
    )


def _ensure(made: Path, words: Sequence[str], what: str, remedy: str, check: str) -> Path:
    if made.is_file():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    beside = made.with_name(f".{made.name}.{os.getpid()}")
    argv = [*words, "-o", str(beside)]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=180, check=False, stdin=subprocess.DEVNULL
        )
        why = (done.stderr.strip() or f"it ended with code {done.returncode}")[-300:]
        if done.returncode == 0:
            beside.replace(made)
            return made
    except (OSError, subprocess.TimeoutExpired) as exc:
        why = str(exc)
    finally:
        beside.unlink(missing_ok=True)
    raise _cannot(what, argv, why, remedy, check)


def _cannot(what: str, argv: Sequence[str], why: str, remedy: str, check: str) -> FairleadError:
    return fail(
        what,
        where=shlex.join(argv),
        why=why,
        remedy=remedy,
        check=check,
        code=ExitCode.LAUNCH_FAILED,
    )
