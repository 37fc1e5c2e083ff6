"""mpi.floor: what a program of the image may call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.elf.facts import Elf, ImageFacts
from fairlead_build.recipe.load import LoadedRecipe, load_recipe
from fairlead_build.tree import mpi_check


def with_floor(floor: str) -> LoadedRecipe:
    loaded = load_recipe("mpi-base")
    assert loaded.recipe.mpi is not None
    mpi = loaded.recipe.mpi.model_copy(update={"floor": floor})
    return replace(loaded, recipe=loaded.recipe.model_copy(update={"mpi": mpi}))


def facts(*calls: str) -> ImageFacts:
    program = Elf("/opt/app/solver", "x86_64", needed=("libmpi.so.12",), mpi_imports=calls)
    held = ImageFacts.__new__(ImageFacts)
    object.__setattr__(held, "consumers", (program,))
    return held


@pytest.mark.parametrize(
    ("floor", "calls", "named"),
    [
        ("3.1", ("MPI_Init", "MPI_Ibcast"), ""),
        ("2.2", ("MPI_Init", "MPI_Ibcast"), "MPI_Ibcast (MPI 3.0)"),
        ("3.1", ("MPI_Session_init", "MPI_Send_c"), "MPI_Send_c (MPI 4.0), MPI_Session_init"),
    ],
)
def test_mpi_floor_names_file_function_and_level(
    floor: str, calls: tuple[str, ...], named: str
) -> None:
    found = list(mpi_check._floor(facts(*calls), with_floor(floor)))
    assert bool(found) == bool(named)
    for finding in found:
        assert finding.what == f"/opt/app/solver needs more than MPI {floor}"
        assert named in finding.why and finding.check == "image-mpi-floor"
