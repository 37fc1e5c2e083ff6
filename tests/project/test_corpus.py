"""What is kept of the corpus of foreign images: the bars, the rows, and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.system.corpus.run import Cell, read
from tests.system.corpus.table import HOSTS, IMAGES, PROGRAMS, drawn, every, rows
from tools import corpus_page

ROOT = Path(__file__).resolve().parents[2]
CELLS, KEPT = read()


def test_page_is_what_is_kept() -> None:
    assert (ROOT / corpus_page.PAGE).read_text() == corpus_page.page()


def test_kept_cells_are_rows_of_the_table_or_of_the_seed() -> None:
    seed, count = KEPT["seed"], KEPT["drawn"]
    assert isinstance(seed, int) and isinstance(count, int)
    assert {cell.row for cell in CELLS} <= {*rows(), *drawn(seed, count)}
    assert len(rows()) >= 160 and not set(drawn(seed, 40)).intersection(rows())


def test_every_value_of_every_axis_is_in_a_row() -> None:
    of = rows()
    assert {row.image for row in of} == set(IMAGES)
    assert {row.program for row in of} == set(PROGRAMS)
    assert {row.host for row in of} == set(HOSTS)
    assert {row.user for row in of} == {"root", "user"}
    assert set(of) <= set(every())


def test_what_foreign_images_come_as_was_run() -> None:
    """An axis that shrinks makes the bars easier."""
    images = [IMAGES[cell.row.image] for cell in CELLS]
    assert {image.suite for image in images} >= {"bookworm", "trixie", "sid"}
    assert {image.layout for image in images} >= {
        "debian",
        "spack",
        "conda",
        "nix",
        "module",
        "venv",
    }
    programs = {cell.row.program for cell in CELLS}
    assert programs >= {"static", "static-pie", "static-stripped", "setuid", "setgid", "filecap"}
    assert programs >= {"opened-path", "opened-name", "ctypes", "rpath", "runpath", "renamed"}
    assert programs >= {"c", "cxx", "mpif", "f08", "rmpi", "petsc4py", "h5py", "mpi4py", "shmem"}
    releases = {
        (mpi, release)
        for image in images
        for mpi, release in zip(image.mpis, image.release.split("+"), strict=True)
    }
    assert releases >= {("openmpi", each) for each in "456"} | {("mpich", each) for each in "345"}
    assert {cell.row.user for cell in CELLS} == {"root", "user"} and len(CELLS) >= 160


# Known wrong predictions; find the cause of each and remove it here.
OPEN: set[str] = set()


def test_wrong_predictions_are_the_known_ones() -> None:
    wrong = {c.row.name for c in CELLS if c.false_yes or c.false_no or c.untrue}
    assert wrong == OPEN
    assert not any(c.false_yes for c in CELLS)
    false_no = [c for c in CELLS if c.false_no]
    assert len(false_no) <= 2 and all(c.false_no for c in CELLS if c.untrue)


def test_readme_claims_what_the_corpus_shows() -> None:
    refused = [c for c in CELLS if c.refused]
    wrong = sum(c.false_no for c in refused)
    text = " ".join((ROOT / "README.md").read_text().split())
    assert not any(c.false_yes for c in CELLS)
    assert (
        f"Of [{len(CELLS)} pairs](docs/reference/corpus.md) of images that others made and host MPIs, `preflight` allowed "
        f"{len(CELLS) - len(refused)}, and all of them ran on the host's MPI; of the {len(refused)} that it refused, "
        f"{wrong or 'none'} would have run."
    ) in text


@pytest.mark.parametrize(
    ("change", "false_yes", "false_no", "untrue"),
    [
        ({"refused": (), "wrong": "maps another"}, True, False, False),
        ({"refused": (), "wrong": ""}, False, False, False),
        ({"refused": ("symbols",), "wrong": ""}, False, True, True),
        ({"refused": ("symbols",), "wrong": "undefined symbol"}, False, False, False),
        ({"refused": ("static",), "wrong": "maps another"}, False, False, True),
        ({"refused": ("abi-family",), "wrong": "alone"}, False, False, True),
    ],
)  # fmt: skip
def test_cell_is_judged_by_what_happened_and_by_the_table(
    change: dict[str, object], false_yes: bool, false_no: bool, untrue: bool
) -> None:
    plain = Cell("bookworm-mpich", "mpich", "c", "mpich-4.3.2", "root", 0, (), "", "")
    cell = replace(plain, **change)  # type: ignore[arg-type]
    assert (cell.false_yes, cell.false_no, bool(cell.untrue)) == (false_yes, false_no, untrue)
