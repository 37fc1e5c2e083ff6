"""What an image lacks for a kernel, laid over it from outside: a read-only folder of locked wheels for its Python."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.paths import atomic_folder, cache_dir, locked
from fairlead.base.process import PYTHON, run_checked
from fairlead.base.progress import Progress, Silent
from fairlead.image.open import Image
from fairlead.swap.model import ROOM, Bind

# By the name of the package in `pip` and in Debian.
NEEDED = {"ipykernel": "python3-ipykernel", "ipyparallel": "python3-ipyparallel"}
OF_RANKS = {"mpi4py": "python3-mpi4py", "numpy": "python3-numpy"}
LOCK = Path(__file__).with_name("kernel.lock")
_PLACE = f"{ROOM}/kernel"
_OWN = f"{ROOM}/own"
_LEAST = (3, 11)


@dataclass(frozen=True)
class Overlay:
    """Folders for the container, and the variables by which its Python finds them."""

    binds: tuple[Bind, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def lacking(image: Image) -> tuple[str, ...]:
    """The packages that an image has not, by their names on PyPI."""
    own = {} if image.record.get("wheel_sha256") else {"fairlead": "fairlead"}
    return tuple(image.lacks({**NEEDED, **OF_RANKS, **own}))


def overlay(
    image: Image,
    wanted: bool,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Overlay:
    """What an image lacks; nothing for one that has all.

    Args:
        wanted: lay over what is missing; otherwise an image that lacks something is refused.
    Raises:
        FairleadError: exit code 121; it lacks something, or its Python is too old. Exit code 1; the wheels cannot be had.
    """
    missing = lacking(image)
    if not missing:
        return Overlay()
    if not wanted:
        line = "pip = [" + ", ".join(f'"{name}"' for name in missing if name != "fairlead") + "]"
        raise fail("notebook-lacks", image=image, missing=", ".join(missing), line=line)
    version = _python(image)
    folders = [(_wheels(missing, version, image.facts.arch, progress or Silent(), environ), _PLACE)]
    own = Path(__file__).resolve().parents[1]
    binds = [Bind(str(folder), place, read_only=True) for folder, place in folders]
    binds.append(Bind(str(own), f"{_OWN}/fairlead", read_only=True))
    return Overlay(tuple(binds), {"PYTHONPATH": f"{_PLACE}:{_OWN}"})


def _python(image: Image) -> str:
    """The version of the image's Python, as ``3.12``."""
    numbers = re.match(r"(\d+)\.(\d+)", image.facts.python or "")
    if numbers is None:
        raise fail("notebook-no-python", image=image)
    if (int(numbers[1]), int(numbers[2])) < _LEAST:
        raise fail("notebook-old-python", image=image, version=numbers[0])
    return numbers[0]


def _wheels(
    missing: tuple[str, ...],
    version: str,
    arch: str,
    progress: Progress,
    environ: Mapping[str, str],
) -> Path:
    """A folder of the lock's wheels; of those that only ranks need, the missing ones."""
    lock = _needed(LOCK.read_text("utf-8"), [name for name in OF_RANKS if name not in missing])
    key = hashlib.sha256(f"{version} {arch} {lock}".encode()).hexdigest()[:20]
    folder = cache_dir(environ) / "kernel" / f"{version}-{key}"
    with progress.stage(f"kernel for Python {version}"), locked(folder.parent / ".lock"):
        if not folder.is_dir():
            with atomic_folder(folder) as tree:
                _pip(lock, tree, version, arch, environ)
    return folder


def _needed(lock: str, left_out: list[str]) -> str:
    """The lock without some packages, each of which is a line and its continuations."""
    for name in left_out:
        lock = re.sub(rf"^{name}==(?:.*\\\n)*.*\n", "", lock, flags=re.M)
    return lock


def _pip(lock: str, tree: Path, version: str, arch: str, environ: Mapping[str, str]) -> None:
    pins = tree.with_name("requirements.txt")
    pins.write_text(lock, "utf-8")
    arch = {"x64": "x86_64", "AArch64": "aarch64"}.get(arch, arch)
    platforms = [f"manylinux_2_{minor}_{arch}" for minor in (28, 27, 24, 17, 12, 5)]
    platforms += [f"manylinux2014_{arch}", f"manylinux2010_{arch}", f"manylinux1_{arch}"]
    options = [
        "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--require-hashes", "--only-binary", ":all:",
        "--python-version", version, "--implementation", "cp", *(w for p in platforms for w in ("--platform", p)),
    ]  # fmt: skip
    run_checked(
        [*PYTHON, "-m", "pip", "install", *options, "--target", tree, "-r", pins],
        "cannot get the wheels of a kernel",
        "check the network and pip's index, then run the same command again",
        environ={**environ, "PIP_USER": "0"},
    )
