"""Compiled parts of fairlead, made from their source by this machine's C compiler when first needed.

They enter no image: an image's bytes must not depend on a compiler.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from fairlead.findings import ExitCode, fail

SOURCE = Path(__file__).with_name("witness.c")
# It must bind to whatever C library an image has: no library is linked, so no version is needed.
_FLAGS = (
    "-std=c11", "-O2", "-fPIC", "-shared", "-nostdlib", "-fno-builtin", "-fno-stack-protector",
    "-fvisibility=hidden", "-Wl,--hash-style=both",
)  # fmt: skip


def witness_path(cache: Path) -> Path:
    """Where the witness is kept, or will be: a name for each source and processor."""
    digest = hashlib.sha256(SOURCE.read_bytes() + repr(_FLAGS).encode()).hexdigest()[:16]
    return cache / "native" / f"witness-{platform.machine()}-{digest}.so"


def compiler(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The words that start the C compiler: ``$CC``, else cc, gcc or clang on PATH; () without one."""
    for text in (environ.get("CC", ""), "cc", "gcc", "clang"):
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
    if made.is_file():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    beside = made.with_name(f".{made.name}.{os.getpid()}")
    argv = [*compiler(environ), *_FLAGS, "-o", str(beside), str(SOURCE)]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
        )
        why = (done.stderr.strip() or f"it ended with code {done.returncode}")[-300:]
        if done.returncode == 0:
            beside.replace(made)
            return made
    except (OSError, subprocess.TimeoutExpired) as exc:
        why = str(exc)
    finally:
        beside.unlink(missing_ok=True)
    raise fail(
        "the witness of a launch cannot be compiled",
        where=shlex.join(argv),
        why=why,
        remedy="install a C compiler (gcc), name a working one in CC, or prove by a job of its own: --probe",
        check="witness",
        code=ExitCode.LAUNCH_FAILED,
    )
