"""The compiled parts on 64-bit ARM, by Debian's cross compiler and by the wheel's, run by QEMU over PyPI's MPICH for it.

QEMU keeps the memory order of this machine's processor, which is stricter than ARM's: what only a weaker order shows
is looked for by the thread sanitizer (``test_comm_core.py``), not here.
"""

from __future__ import annotations

import io
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from tests.system import hosts

from fairlead import native
from fairlead.base.paths import atomic_folder, cache_dir, locked
from fairlead.mpi.wheels import known_wheels
from fairlead_build.cache.store import Cache
from fairlead_build.tree.wheel import own_wheel

pytestmark = [
    pytest.mark.full,  # the compiler and QEMU are 110 MB
    pytest.mark.skipif(platform.machine() != "x86_64", reason="crosses from x86_64"),
]
MPICH = "mpich==5.0.2"


@cache
def tools() -> Path:
    """A root folder with the cross compiler, its libraries, and QEMU."""
    return hosts.debian_files(
        "bookworm", "g++-12-aarch64-linux-gnu", "gcc-12-aarch64-linux-gnu", "cpp-12-aarch64-linux-gnu",
        "binutils-aarch64-linux-gnu", "libgcc-12-dev-arm64-cross", "libstdc++-12-dev-arm64-cross",
        "libc6-dev-arm64-cross", "linux-libc-dev-arm64-cross", "libc6-arm64-cross", "libgcc-s1-arm64-cross",
        "libstdc++6-arm64-cross", "libatomic1-arm64-cross", "qemu-user-static",
    )  # fmt: skip


@cache
def mpi() -> Path:
    """The folder of the host MPI's libraries for ARM, by the hash that this release pins."""
    (wheel,) = (w for w in known_wheels().wheel if w.pin == MPICH)
    folder = hosts.KEPT / f"arm-{MPICH}"
    with locked(hosts.KEPT / ".lock"):
        if not folder.is_dir():
            with atomic_folder(folder) as tree:
                pins = tree / "requirements.txt"
                pins.write_text(f"{MPICH} {' '.join(f'--hash=sha256:{h}' for h in wheel.sha256)}\n")
                quiet = ("-q", "--no-deps", "--only-binary", ":all:", "--require-hashes")
                where = ("--platform", "manylinux_2_28_aarch64", "-d", tree)
                _run(sys.executable, "-m", "pip", "download", *quiet, *where, "-r", pins)
                (packed,) = tree.glob("*.whl")
                zipfile.ZipFile(packed).extractall(tree)
    (library,) = folder.rglob("libmpi.so.12")
    return library.parent


def _run(*words: str | Path, **environ: str) -> None:
    done = subprocess.run(
        [str(w) for w in words], env={**os.environ, **environ}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def crossed(compiler: str, made: Path, *words: str | Path) -> Path:
    """What a cross compiler makes, without a warning."""
    root = tools()
    libc = (
        "-idirafter",
        root / "usr/aarch64-linux-gnu/include",
        f"-Wl,--sysroot={root}",
    )
    program = root / f"usr/bin/aarch64-linux-gnu-{compiler}-12"
    libraries = str(root / "usr/lib/x86_64-linux-gnu")
    _run(program, "-Wall", "-Werror", *libc, *words, "-o", made, LD_LIBRARY_PATH=libraries)
    with made.open("rb") as stream:
        assert ELFFile(stream)["e_machine"] == "EM_AARCH64"
    return made


@pytest.fixture(scope="module", params=["gcc", "wheel"])
def core(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The collective core by Debian's cross compiler, and as our wheel ships it."""
    if request.param == "wheel":
        return shipped(tmp_path_factory.mktemp("shipped"))
    folder = native.core_folder()
    sources = sorted((folder / "src").glob("*.cpp"))
    made = tmp_path_factory.mktemp("arm") / "libfairlead_comm.so"
    flags = (folder / "flags").read_text().split()
    return crossed("g++", made, *flags, "-I", folder / "include", *sources, "-lgcc")


def shipped(folder: Path) -> Path:
    cache, made = Cache(folder / "cache"), folder / native.CORE.name
    cache.make()
    with zipfile.ZipFile(io.BytesIO(own_wheel(cache))) as wheel:
        made.write_bytes(wheel.read(f"fairlead/native/lib/aarch64/{native.CORE.name}"))
    return made


def program(name: str, core: Path) -> Path:
    """``programs/NAME.c`` for ARM."""
    source = hosts.PROGRAMS / f"{name}.c"
    include = ("-I", native.core_folder() / "include")
    words = ("-O1", "-Wno-format", *include, source, core, "-ldl", "-lpthread")
    return crossed("gcc", core.with_name(name), *words)


def ranks(
    count: int, made: Path, *words: str, preload: Sequence[Path] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """A program for ARM on so many ranks: this machine's mpiexec starts a QEMU each."""
    root, library = tools(), mpi() / "libmpi.so.12"
    emulated = [
        root / "usr/bin/qemu-aarch64-static", "-L", root / "usr/aarch64-linux-gnu",
        "-E", f"LD_LIBRARY_PATH={library.parent}", "-E", f"LD_PRELOAD={' '.join(map(str, [*preload, library]))}",
    ]  # fmt: skip
    argv = [hosts.mpich() / "bin/mpiexec", "-n", str(count), *emulated, made, *words]
    return subprocess.run(
        [str(w) for w in argv],
        # QEMU has no process_vm_readv, which MPICH takes for granted once it has seen it in the kernel.
        env={**os.environ, "MPIR_CVAR_CH4_CMA_ENABLE": "0", **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def fine(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("count", "threads", "variables"),
    [
        (1, 1, {}),
        (2, 1, {}),
        (3, 2, {}),
        (3, 1, {"FAIRLEAD_COMM_NODE_RANKS": "2", "FAIRLEAD_COMM_CHUNK_KB": "4"}),
        (2, 1, {"FAIRLEAD_COMM_SHARED_MEMORY": "0"}),
    ],
    ids=["alone", "two", "teams", "uneven-small", "no-memory"],
)
def test_core_sums_and_spreads_right(
    count: int, threads: int, variables: dict[str, str], core: Path
) -> None:
    text = fine(ranks(count, program("comm_check", core), str(threads), "300000", **variables))
    assert text.startswith(f"{count} ranks") and "neon" in text and "ok calls" in text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_both_processors_get_the_same_bits(count: int, core: Path, tmp_path: Path) -> None:
    here = tmp_path / "comm_bits"
    library = native.ensure(native.CORE, cache_dir())
    include = ("-I", native.core_folder() / "include")
    source = hosts.PROGRAMS / "comm_bits.c"
    _run("cc", "-O1", "-Wall", "-Werror", *include, source, library, "-o", here, "-ldl", "-lpthread")  # fmt: skip
    prefix = hosts.mpich()
    preload = f"LD_PRELOAD={prefix}/lib/libmpi.so.12"
    mine = subprocess.run(
        [prefix / "bin/mpiexec", "-n", str(count), "env", preload, here],
        capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    kernels, digest = fine(mine).split()
    assert kernels != "neon"
    assert fine(ranks(count, program("comm_bits", core))).split() == ["neon", digest]


def test_witness_proves_and_refuses_there_too(core: Path, tmp_path: Path) -> None:
    flags = (
        "-std=c11",
        "-O2",
        "-fPIC",
        "-shared",
        "-nostdlib",
        "-fno-builtin",
        "-fno-stack-protector",
    )
    more = ("-fvisibility=hidden", "-Wl,--hash-style=both")
    witness = crossed("gcc", tmp_path / "witness.so", *flags, *more, native.SOURCES / "witness.c")
    made = program("comm_bits", core)
    library = mpi() / "libmpi.so.12"
    for want, code in ((2, 0), (3, 122)):
        records = tmp_path / str(want)
        records.mkdir()
        plan = f"{want}|0|{records}|{library}"
        done = ranks(2, made, preload=[witness], FAIRLEAD_PROOF=plan)
        assert done.returncode == code, done.stdout + done.stderr
        assert done.stdout.startswith("neon") is (code == 0)
        (proof,) = records.glob("proof.*.0")
        said = proof.read_bytes().rstrip(b"\0 \n").decode(errors="replace")
        assert "size=2" in said and str(library) in said and "MPICH Version:      5.0.2" in said
