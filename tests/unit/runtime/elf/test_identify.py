"""Whose MPI a file is: on recorded facts, and on small files that carry the signs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.compiled import MPICH, OPENMPI, WHOLE, compiled
from tests.support.recorded import HOSTS, host, image

from fairlead.elf.facts import AbiFamily, Elf
from fairlead.elf.mpi_symbols import (
    contains_mpi,
    family_of_soname,
    identify,
    is_mpi_library,
    is_request,
    read_mpi,
)

KNOWN = {
    "debian-sid-mpich-5.0.2": (AbiFamily.MPICH, "MPICH", "5.0.2", "5.0", "libmpich.so.12"),
    "debian13-mpich-4.2.1": (AbiFamily.MPICH, "MPICH", "4.2.1", "4.0", "libmpich.so.12"),
    "impi-2021.18.1": (AbiFamily.MPICH, "Intel MPI", "2021.18.1", "5.0", "libmpi.so.12"),
    "mpich-5.0.2": (AbiFamily.MPICH, "MPICH", "5.0.2", "5.0", "libmpi.so.12"),
    "openmpi-5.0.11": (AbiFamily.OPENMPI, "Open MPI", "", "4.0", "libmpi.so.40"),
}


@pytest.mark.parametrize("name", HOSTS)
def test_recorded_library_is_what_it_was_downloaded_as(name: str) -> None:
    library = host(name).library
    assert KNOWN[name] == (
        library.family,
        library.vendor,
        library.version,
        library.level,
        library.soname,
    )
    assert is_mpi_library(library.elf)


@pytest.mark.parametrize(
    ("later", "level"),
    [
        ((), "3.0"),
        (("MPI_Aint_add",), "3.1"),
        (("MPI_File_iread_at_all",), "3.1"),  # Open MPI 4, of which the other is a macro
        (("MPI_Session_init", "MPI_File_iread_at_all"), "4.0"),
    ],
)
def test_level_is_that_of_the_newest_function(
    later: tuple[str, ...], level: str, tmp_path: Path
) -> None:
    path = tmp_path / "libmpi.so.40"
    path.write_text("Open MPI")
    elf = host("openmpi-5.0.11").library.elf
    old = replace(elf, mpi_exports=("MPI_Init", "MPI_Comm_rank", "MPI_Iallreduce", *later))
    assert identify(path, old).level == level


@pytest.mark.parametrize("name", HOSTS)
def test_recorded_symbols_identify_the_family_without_the_file_name(
    name: str, tmp_path: Path
) -> None:
    library = host(name).library
    content = {
        "MPICH": f"\0MPICH Version\0{library.version}\0",
        "Intel MPI": f"Intel(R) MPI Library\0{library.version}\0",
        "Open MPI": "Open MPI",
    }[library.vendor]
    path = tmp_path / "renamed.so"
    path.write_text(content)
    found = identify(path, library.elf)
    assert (found.family, found.vendor, found.version, found.level) == KNOWN[name][:4]


@pytest.mark.parametrize("name", HOSTS)
def test_recorded_companions_and_closure_are_no_mpi(name: str) -> None:
    for part in (*host(name).companions, *host(name).closure):
        assert not is_mpi_library(part), part.path


def test_image_consumers_are_no_mpi_libraries() -> None:
    for name in ("mpi-base", "debian12-mpich"):
        assert not any(is_mpi_library(e) for e in image(name).consumers)


@pytest.mark.parametrize(
    ("soname", "family"),
    [
        ("libmpi.so.12", AbiFamily.MPICH),
        ("libmpich.so.12", AbiFamily.MPICH),
        ("libmpi_gnu_123.so.12", AbiFamily.MPICH),
        ("libmpi.so.40", AbiFamily.OPENMPI),
        ("libmpi.so.20", AbiFamily.OPENMPI),
        ("libmpi_abi.so.1", AbiFamily.MPI5),
        ("libmpi.so.1", AbiFamily.UNKNOWN),
        ("libmpifort.so.12", AbiFamily.UNKNOWN),
        ("libc.so.6", AbiFamily.UNKNOWN),
        ("libmpich.so.120", AbiFamily.UNKNOWN),
    ],
)
def test_family_of_soname(soname: str, family: AbiFamily) -> None:
    assert family_of_soname(soname) is family


def test_profiler_that_wraps_mpi_is_no_mpi() -> None:
    exports = ("MPI_Init", "MPI_Comm_rank")
    mpi = Elf("/x", "x64", soname="libmpi.so.12", mpi_exports=exports)
    assert is_mpi_library(mpi)
    assert not is_mpi_library(replace(mpi, mpi_imports=("PMPI_Init",)))
    assert not is_mpi_library(replace(mpi, soname=""))


def test_read_mpi_of_another_library_is_refused() -> None:
    libc = next(
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/libc" in line
    )
    with pytest.raises(ValueError, match="not an MPI library"):
        read_mpi(Path(libc))


@pytest.mark.parametrize(
    ("sign", "vendor", "version"),
    [
        (b"CRAY MPICH version 8.1.30.4", "Cray MPICH", "8.1.30.4"),
        (b"MVAPICH2 Version\0" + b"x\0" + b"2.3.7\0", "MVAPICH", "2.3.7"),
        (b"MPICH Version\0none", "MPICH", ""),
        (b"nothing known", "unknown", ""),
    ],
)
def test_vendor_signs(sign: bytes, vendor: str, version: str, tmp_path: Path) -> None:
    path = tmp_path / "libmpi.so.12"
    path.write_bytes(b"\x7fELF.." + sign)
    exports = ("MPI_Comm_rank", "MPI_Init")
    found = identify(path, Elf(str(path), "x64", soname="libmpi.so.12", mpi_exports=exports))
    assert (found.vendor, found.version, found.family) == (vendor, version, AbiFamily.MPICH)


@pytest.mark.parametrize(
    ("soname", "family"),
    [
        ("libmpi_ibm.so.3", AbiFamily.OPENMPI),
        ("libpmpi_abi.so.1", AbiFamily.MPI5),
        ("libpmpi.so.12", AbiFamily.MPICH),
    ],
)
def test_names_of_spectrum_and_of_profiling_libraries_ask_for_a_family(
    soname: str, family: AbiFamily
) -> None:
    assert is_request(soname) and family_of_soname(soname) is family


@pytest.mark.parametrize(
    "soname", ["libmpiP.so", "libmpifort.so.12", "libhdf5_mpi.so", "libc.so.6"]
)
def test_names_of_other_libraries_ask_for_no_mpi(soname: str) -> None:
    assert not is_request(soname)


def test_open_mpi_6_is_known_by_the_library_behind_its_front(tmp_path: Path) -> None:
    core = compiled(tmp_path / "libopen_mpi.so.40", "int ompi_mpi_comm_world;")
    front = "int MPI_Init(void) { return 0; } int MPI_Comm_rank(void) { return 0; }"
    use = "extern int ompi_mpi_comm_world; int *use(void) { return &ompi_mpi_comm_world; }"
    for name, family in (
        ("libmpi.so.40", AbiFamily.OPENMPI),
        ("libmpi_abi.so.1", AbiFamily.MPI5),
    ):
        found = read_mpi(compiled(tmp_path / name, front + use, str(core)))
        assert (found.family, found.vendor) == (family, "Open MPI")


@pytest.mark.parametrize(
    ("code", "family"),
    [
        (OPENMPI, AbiFamily.OPENMPI),
        (MPICH + "int MPI_Comm_c2f(int c) { return c; }", AbiFamily.MPICH),
        (MPICH + "int MPI_Abi_get_version(void) { return 0; }", AbiFamily.MPI5),
        (MPICH.replace("MPICH Version", "nothing known"), AbiFamily.UNKNOWN),
    ],
    ids=["openmpi", "mpich", "abi", "unknown"],
)
def test_renamed_library_is_known_by_what_it_has(
    code: str, family: AbiFamily, tmp_path: Path
) -> None:
    assert read_mpi(compiled(tmp_path / "libvendor-mpi.so.7", code + WHOLE)).family is family


def test_library_that_an_mpi_was_linked_into_is_none_and_contains_one() -> None:
    """It may export what it has of the MPI. One that has all of it under another name is an MPI."""
    solver = Elf("/x", "x64", soname="libsolver.so.1", mpi_exports=("MPI_Comm_rank", "MPI_Init"))
    assert not is_mpi_library(solver) and not contains_mpi(solver), "a tracer that opens its MPI"
    holds = replace(solver, holds="mpich")
    assert not is_mpi_library(holds) and contains_mpi(holds)
    whole = host("mpich-5.0.2").library.elf
    renamed = replace(whole, soname="libvendor.so.7", holds="mpich")
    assert is_mpi_library(renamed) and not contains_mpi(renamed)
    for part in ("libmpi.so.12", "libpmpi.so.12", "libopen_mpi.so.40"):
        assert not contains_mpi(Elf("/x", "x64", soname=part, holds="mpich")), part
    assert contains_mpi(Elf("/x.cpython-311.so", "x64", holds="openmpi"))
    assert not contains_mpi(replace(holds, mpi_imports=("PMPI_Init",)))
