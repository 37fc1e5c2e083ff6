"""Hatch build hook: compiles the collective core, the witness and the proof of NCCL's plugins into the wheel, for each processor in ``TARGETS``.

The compiler is Zig's (the extra ``native`` pins it): it cross-compiles, and the same version gives the same bytes on
every machine, so a wheel of one commit does not depend on the builder. The libraries link nothing and need no version
of any symbol; 2.17 is the age of the C library whose headers they are compiled against.

An editable install has none of them: a checkout compiles with the compiler of its machine when a library is needed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import runpy
import shlex
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# By the name that platform.machine() gives. Clang takes the width of vectors for a whole file only; where a function
# may not use so wide ones, it has no effect.
TARGETS = {
    "x86_64": ("-target", "x86_64-linux-gnu.2.17", "-mcpu=baseline", "-mprefer-vector-width=512"),
    "aarch64": ("-target", "aarch64-linux-gnu.2.17", "-mcpu=baseline"),
}
# Lazy: what an old C library lacks must not keep a program from starting that never calls it.
LINK = ("-Wl,--build-id=none", "-Wl,-s", "-Wl,-z,lazy")
IN_WHEEL = "fairlead/native/lib"


class Made(NamedTuple):  # hatchling loads this file as no module, which a dataclass needs
    """How one library is compiled.

    Attributes:
        name: of its file.
        driver: Zig's compiler command, ``cc`` or ``c++``.
        folder: where the compiler runs; all other paths are relative to it, and none enters the library.
        flags: for one command that compiles and links.
    """

    name: str
    driver: str
    folder: Path
    flags: tuple[str, ...]
    sources: tuple[str, ...]
    headers: tuple[str, ...] = ()

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """Without ``-nostdlib``, for which Zig takes its C++ headers away."""
        return tuple(
            f for f in self.flags if f not in ("-shared", "-nostdlib") and not f.startswith("-Wl,")
        )

    @property
    def link_flags(self) -> tuple[str, ...]:
        return tuple(f for f in self.flags if f.startswith("-Wl,"))


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the libraries to a wheel. hatchling finds the class by its kind."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        root = Path(self.root)
        for machine, library in compiled(root):
            build_data["force_include"][str(library)] = f"{IN_WHEEL}/{machine}/{library.name}"


def libraries(root: Path) -> tuple[Made, ...]:
    """What is to be compiled in the checkout or sdist at ``root``."""
    here = root / "runtime" / "fairlead" / "native"
    table = runpy.run_path(str(here / "libraries.py"))["LIBRARIES"]
    return tuple(_made(one, root / "runtime" / "native" if one.core else here) for one in table)


def _made(one: Any, folder: Path) -> Made:
    def named(patterns: Iterable[str]) -> tuple[str, ...]:
        found = [path for each in patterns for path in sorted(folder.glob(each))]
        return tuple(path.relative_to(folder).as_posix() for path in found)

    flags = (folder / one.flags).read_text("utf-8").split()
    include = [f"-I{one.include}"] if one.include else []
    driver = "c++" if one.language == "c++" else "cc"
    return Made(
        one.name,
        driver,
        folder,
        (*flags, *one.more, *include),
        named(one.sources),
        named(one.headers),
    )


def compiled(root: Path) -> list[tuple[str, Path]]:
    """The libraries by processor, in ``build/libraries`` below ``root``; compiled unless they are there.

    Raises:
        RuntimeError: there is no compiler, or it fails.
    """
    wanted = libraries(root)
    folder = root / "build" / "libraries" / _key(root, wanted)
    found = [(machine, folder / machine / one.name) for machine in TARGETS for one in wanted]
    if all(path.is_file() for _, path in found):
        return found
    zig = compiler(root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    except OSError as exc:
        raise RuntimeError(f"the libraries of a wheel are compiled in {folder}: {exc}") from exc
    try:
        _compile(zig, wanted, scratch)
        for machine, path in found:
            path.parent.mkdir(exist_ok=True)
            (scratch / machine / path.name).replace(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return found


def compiler(root: Path) -> Path:
    """Zig's program, of the version that the checkout or sdist at ``root`` pins.

    Raises:
        RuntimeError: it is not installed.
    """
    package, pinned = _pin(root).split("==")
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise RuntimeError(f"the compiler is not installed: pip install {package}=={pinned}")
    version = importlib.metadata.version(package)
    if version != pinned:
        raise RuntimeError(f"{package} {version} is installed: pip install {package}=={pinned}")
    return Path(next(iter(found.submodule_search_locations))) / "zig"


def _pin(root: Path) -> str:
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    (pinned,) = project["optional-dependencies"]["native"]
    return str(pinned)


def _key(root: Path, wanted: Iterable[Made]) -> str:
    """A name for all that the libraries depend on."""
    state = hashlib.sha256(Path(__file__).read_bytes() + _pin(root).encode())
    for one in wanted:
        state.update(repr((one.name, one.flags)).encode())
        for file in (*one.sources, *one.headers):
            body = (one.folder / file).read_bytes()
            state.update(f"{file}\0{len(body)}\0".encode() + body)
    return state.hexdigest()[:16]


def _compile(zig: Path, wanted: Sequence[Made], scratch: Path) -> None:
    # Its cache is of no use once the libraries are made, and has no place in anybody's home.
    cache = str(scratch / "cache")
    environ = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
    jobs = [
        (one, machine, source, scratch / machine / f"{one.name}-{Path(source).name}.o")
        for machine in TARGETS
        for one in wanted
        for source in one.sources
    ]
    for machine in TARGETS:
        (scratch / machine).mkdir()

    def run(one: Made, machine: str, *words: str) -> None:
        argv = [str(zig), one.driver, *TARGETS[machine], *words]
        done = subprocess.run(
            argv, cwd=one.folder, env=environ, stdin=subprocess.DEVNULL, text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{shlex.join(argv)} failed:\n{done.stderr[-2000:]}")

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = [
            pool.submit(
                run, one, machine, *one.compile_flags, f"-ffile-prefix-map={one.folder}=.", "-c", source, "-o", str(out)
            )
            for one, machine, source, out in jobs
        ]  # fmt: skip
        for each in made:
            each.result()
    for machine in TARGETS:
        for one in wanted:
            objects = [str(out) for of, m, _, out in jobs if (of, m) == (one, machine)]
            library = scratch / machine / one.name
            run(one, machine, "-shared", "-nostdlib", *one.link_flags, *LINK, *objects, "-o", str(library))  # fmt: skip
