"""The wheel as a user gets it: installed outside the checkout, on a machine without a compiler.

What is built from it is compared with what the checkout builds: an image is the same, byte for byte.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.support import every_verb
from tests.system import hosts

from fairlead import native
from fairlead.base.paths import cache_dir
from fairlead.elf.reader import read
from fairlead.native import libraries
from fairlead_build.build import build
from fairlead_build.cache.store import Cache
from fairlead_build.tree.wheel import own_wheel

LIBRARIES = tuple(library.name for library in libraries.LIBRARIES)
PROCESSORS = {"x86_64": "x64", "aarch64": "AArch64"}  # and what an ELF header calls them
COMPILERS = re.compile(r"(.*-)?(cc|c\+\+|gcc|g\+\+|c89|c99|clang|clang\+\+|tcc|zig)(-[0-9.]+)?")
AVERAGE = """
import numpy as np
import fairlead.comm as comm
comm.init()
(mean,) = comm.aggregate([np.full(4, comm.rank() + 1.0, "f")])
print("mean", mean[0], "by", comm.init().backend)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by ``python -m build`` with the environment's own backend, as `make dist` does with a fresh one."""
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, hosts.ROOT)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder / native.__name__.replace(".", "/") / "lib"


def _run(*words: str | Path, **environ: str) -> str:
    done = subprocess.run(
        [str(w) for w in words], env={**os.environ, **environ}, capture_output=True, text=True,
        timeout=400, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def python(version: str) -> Path | None:
    """A Python of this machine with venv: on PATH, or among those that pyenv has installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    named = shutil.which(f"python{version}")
    found = [Path(named)] if named else []
    for program in [*found, *sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))]:
        done = subprocess.run([program, "-c", "import ensurepip, venv"], capture_output=True)
        if done.returncode == 0:
            return program
    return None


class Installed:
    """The wheel in a virtual environment of its own, and a PATH on which there is no compiler."""

    def __init__(self, wheel: Path, folder: Path, program: Path, extras: str = "") -> None:
        self.folder = folder
        self.bin = folder / "venv/bin"
        _run(program, "-m", "venv", folder / "venv")
        self.install(wheel, extras)
        programs = folder / "bin"
        programs.mkdir()
        for place in ("/usr/sbin", "/sbin", "/usr/bin", "/bin"):
            for path in Path(place).iterdir():
                if not COMPILERS.fullmatch(path.name) and not (programs / path.name).is_symlink():
                    (programs / path.name).symlink_to(path)
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("FAIRLEAD_", "PYTHON"))},
            "PATH": f"{self.bin}:{programs}",
            "CC": "",
            "CXX": "",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_DATA_HOME": os.environ.get("XDG_DATA_HOME", str(Path.home() / ".local/share")),
        }
        assert native.cxx_compiler(self.env) == () == native.compiler(self.env)

    def install(self, wheel: Path, extras: str) -> None:
        """From the index; bytecode is made of what is imported, not of all."""
        quick = ("-q", "--progress-bar", "off", "--no-compile")
        _run(self.bin / "pip", "install", *quick, f"{wheel}{extras}")

    def fairlead(
        self, *words: str | Path, limit_s: float = 120, **env: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / "fairlead", *map(str, words)],
            env={**self.env, **env}, cwd=self.folder, capture_output=True, text=True,
            timeout=limit_s, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def answer(self, *words: str | Path, limit_s: float = 120, **env: str) -> dict[str, Any]:
        done = self.fairlead(*words, "--json", limit_s=limit_s, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        return hosts.answer(done)


def proved_run(installed: Installed, image: Path) -> None:
    """Two ranks are proved by the wheel's witness, and add by the wheel's core."""
    preflight = installed.answer("preflight", image)
    assert not [f for f in preflight["findings"] if f["severity"] == "error"], preflight
    done = installed.fairlead("run", "-n", "2", "--json", image, "--", "python3", "-c", AVERAGE)
    assert done.returncode == 0, done.stdout + done.stderr
    proof = hosts.answer(done)["proof"]
    assert proof["holds"] and len(proof["ranks"]) == 2
    assert done.stderr.count("mean 1.5 by native") == 2, done.stderr
    folder = installed.folder / "cache/fairlead/native"
    kept = {p.name.split("-")[0]: p for p in folder.glob("*.so")}
    shipped = next(
        installed.folder.glob(f"venv/lib/python*/site-packages/fairlead/native/lib/{platform.machine()}")
    )  # fmt: skip
    assert kept["witness"].read_bytes() == (shipped / native.WITNESS.name).read_bytes()
    assert kept["libfairlead_comm"].read_bytes() == (shipped / native.CORE.name).read_bytes()


# --- what is in it ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("machine", sorted(PROCESSORS))
def test_library_of_the_wheel_needs_no_library_and_no_symbol_version(
    machine: str, name: str, unpacked: Path
) -> None:
    facts = read(unpacked / machine / name)
    assert facts.machine == PROCESSORS[machine]
    # So any C library will do, and the process has no need of libstdc++.
    assert (facts.needed, facts.needs, facts.rpath, facts.runpath) == ((), {}, (), ())
    body = (unpacked / machine / name).read_bytes()
    assert str(hosts.ROOT).encode() not in body and b"/site-packages/" not in body


def test_wheel_is_for_every_platform_and_says_so(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {n for n in names if n.endswith(".so")} == {
        f"fairlead/native/lib/{m}/{n}" for m in PROCESSORS for n in LIBRARIES
    }
    # Other platforms compile: their sources come along.
    for source in (
        "fairlead/native/witness.c",
        "fairlead/native/wire.c",
        "fairlead/_data/native/src/lane.cpp",
        "fairlead/_data/native/tensorflow/operation.cpp",
    ):
        assert source in names
    assert {"fairlead/py.typed", "fairlead_build/py.typed"} <= set(names)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="kernels are named as on x86_64")
@pytest.mark.parametrize("kernels", ["generic", "avx2", "avx512"])
def test_core_of_the_wheel_gives_the_bits_of_one_compiled_here(
    kernels: str, unpacked: Path, tmp_path: Path
) -> None:
    digests = set()
    prefix = hosts.mpich()
    for number, library in enumerate((unpacked / "x86_64" / native.CORE.name, native.ensure(native.CORE, cache_dir()))):  # fmt: skip
        program = tmp_path / str(number)
        words = ("-O1", "-I", native.core_folder() / "include", hosts.PROGRAMS / "comm_bits.c")
        _run("cc", *words, library, "-o", program, "-ldl", "-lpthread")
        preload = f"LD_PRELOAD={prefix}/lib/libmpi.so.12"
        digests.add(
            _run(prefix / "bin/mpiexec", "-n", "2", "env", preload, program, FAIRLEAD_COMM_KERNELS=kernels)
        )  # fmt: skip
    assert len(digests) == 1, digests


# --- installed ----------------------------------------------------------------------------------


def test_wheel_runs_proved_without_a_compiler_and_knows_the_image_of_the_checkout(
    wheel: Path, tmp_path: Path
) -> None:
    installed = Installed(wheel, tmp_path, Path(sys.executable))
    refused = installed.fairlead("recipe", "list")
    assert refused.returncode == 2 and "pip install 'fairlead[build]'" in refused.stderr
    proved_run(installed, hosts.image())
    for name, _ in every_verb.commands():
        words = every_verb.words(name, hosts.image(), tmp_path, hosts.ROOT)
        done = installed.fairlead(*words, limit_s=300)
        assert "Traceback" not in done.stdout + done.stderr, (words, done.stderr)
        assert 0 <= done.returncode < 126, (words, done.stderr)
        if "tool-missing" in done.stderr:
            assert "next:  pip install 'fairlead[" in done.stderr, done.stderr

    installed.install(wheel, "[build]")
    listed = installed.fairlead("recipe", "list")
    assert listed.returncode == 0 and "mpi-base" in listed.stdout, listed.stderr
    # The checkout has built it, and the wheel's own copy of the code says that it would build the same.
    built = installed.answer("build", "mpi-base", XDG_CACHE_HOME=str(cache_dir().parent))
    assert built["cached"], built


@pytest.mark.full
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_wheel_builds_the_image_of_the_checkout_and_runs_it(
    version: str, wheel: Path, tmp_path: Path
) -> None:
    program = python(version)
    if program is None:
        pytest.skip(f"no Python {version} with venv on this machine")
    installed = Installed(wheel, tmp_path, program, "[build]")
    listed = installed.fairlead("recipe", "list")
    assert listed.returncode == 0 and "mpi-base" in listed.stdout, listed.stderr
    entry = build("mpi-base").entry
    assert entry is not None
    # Downloads alone are taken over: tree, core, payload and SIF are made anew.
    ours, theirs = Cache.default(), Cache(tmp_path / "cache/fairlead")
    theirs.root.mkdir(parents=True)
    for folder in ("blobs", "tools"):
        shutil.copytree(
            ours.root / folder, theirs.root / folder, copy_function=hosts.same_file, symlinks=True
        )
    image = installed.answer("build", "mpi-base", limit_s=600)["image"]
    assert image["sif_sha256"] == entry.sif_sha256
    proved_run(installed, Path(image["path"]))


@pytest.mark.full
def test_sdist_gives_the_wheel_of_the_checkout_and_image(wheel: Path, tmp_path: Path) -> None:
    # In a fresh environment: the backend says what it needs.
    _run(sys.executable, "-m", "build", "-o", tmp_path, hosts.ROOT)
    (again,) = tmp_path.glob("*.whl")
    assert again.read_bytes() == wheel.read_bytes()
    cache = Cache(tmp_path / "cache")
    cache.make()
    (tmp_path / "own.whl").write_bytes(own_wheel(cache))
    with zipfile.ZipFile(tmp_path / "own.whl") as own, zipfile.ZipFile(wheel) as whole:
        for name in own.namelist():
            if ".dist-info/" not in name:
                assert own.read(name) == whole.read(name), name
