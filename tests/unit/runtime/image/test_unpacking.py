"""Programs that unpack an MPI when they start: what is in their archives, on files that are made as PyInstaller makes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.compiled import CALLS, MPICH, OPENS, compiled, packed

from fairlead.image.budget import Budget
from fairlead.image.scan import scan_tree
from fairlead.image.unpacking import unpacked_mpis

WHEEL = "mpi4py/MPI.mpich.cpython-311-x86_64-linux-gnu.so"


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, Path]:
    mpi = compiled(tmp_path / "libmpi.so.12", MPICH)
    module = compiled(tmp_path / "fast.so", CALLS, str(mpi))
    return {"mpi": mpi, "module": module, "other": compiled(tmp_path / "other.so", "int x;")}


def unpacked(tmp_path: Path, compress: bool = True, **named: Path) -> tuple[str, ...]:
    made = packed(compiled(tmp_path / "program", OPENS), named, compress=compress)
    return unpacked_mpis(made, Budget(tmp_path))


@pytest.mark.parametrize("compress", [True, False])
def test_mpi_that_is_unpacked_and_linked_is_named(
    parts: dict[str, Path], tmp_path: Path, compress: bool
) -> None:
    named = {"libmpi.so.12": parts["mpi"], "pkg/fast.so": parts["module"]}
    assert unpacked(tmp_path, compress, **named) == ("libmpi.so.12",)


def test_mpi_that_nothing_is_linked_to_and_a_program_without_archive_are_no_matter(
    parts: dict[str, Path], tmp_path: Path
) -> None:
    mpi, module = parts["mpi"], parts["module"]
    assert unpacked(tmp_path, **{"libmpi.so.12": mpi, "other.so": parts["other"]}) == ()
    assert unpacked(tmp_path, **{"pkg/fast.so": module}) == ()
    assert unpacked_mpis(compiled(tmp_path / "plain", OPENS), Budget(tmp_path)) == ()


def test_mpi4pys_wheel_opens_the_hosts_by_its_name_unless_that_is_unpacked_too(
    parts: dict[str, Path], tmp_path: Path
) -> None:
    named = {"libmpi.so.12": parts["mpi"], WHEEL: parts["module"]}
    assert unpacked(tmp_path, **named) == ()
    assert unpacked(tmp_path, **named, **{"libmpi.so": parts["mpi"]}) == ("libmpi.so.12",)


def test_program_that_unpacks_an_mpi_is_in_the_facts_of_its_image(
    parts: dict[str, Path], tmp_path: Path
) -> None:
    program = compiled(tmp_path / "root/opt/app/solve", OPENS)
    packed(program, {"libmpi.so.12": parts["mpi"], "fast.so": parts["module"]})
    assert scan_tree(tmp_path / "root").unpacks == {"/opt/app/solve": ("libmpi.so.12",)}
