"""Pairs of foreign image and host as they were recorded, run again; and, in `make test-full`, pairs by chance."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.system import hosts
from tests.system.corpus import trees, truth
from tests.system.corpus.run import CELLS_OFTEN, Cell, read, run
from tests.system.corpus.table import Row, drawn

KNOWN = {cell.row: cell for cell in read()[0]}
ROWS = [
    pytest.param(row, id=row.name, marks=[] if row.name in CELLS_OFTEN else [pytest.mark.full])
    for row in KNOWN
]


@pytest.fixture(scope="module")
def user() -> Iterator[truth.User]:
    with truth.user() as who:
        yield who


def ran(row: Row, request: pytest.FixtureRequest) -> Cell:
    return run(row, request.getfixturevalue("user") if row.user == "user" else None)


@pytest.mark.parametrize("row", ROWS)
def test_pair_is_as_recorded(row: Row, request: pytest.FixtureRequest) -> None:
    seen, known = ran(row, request), KNOWN[row]
    # How a forced run fails is a matter of chance.
    assert (seen.refused, bool(seen.wrong)) == (known.refused, bool(known.wrong)), seen


def test_arrays_of_gfortrans_mpi_f08_work_on_intels_mpi() -> None:
    """Intel's interface to Fortran has the same names, and another compiler's array descriptors."""
    cell = run(Row("bookworm-mpich", "mpich", "f08", "impi-2021.18.1", "root"), None)
    assert (cell.refused, cell.wrong) == ((), ""), cell


def test_exit_code_of_a_virtual_environments_script_that_fails_before_mpi_stands() -> None:
    """The probe that then looks for a cause runs on that Python too: another has no mpi4py, which is no cause."""
    words = ("--mpi", hosts.wheel("mpich", "5.0.2"), trees.image("venv-mpich-4.3.2"))
    command = ("/opt/venv/bin/python3", "-c", "raise SystemExit(3)")
    done = hosts.fairlead("run", "-n", "2", *words, "--", *command, env=hosts.AS_ROOT)
    assert done.returncode == 3 and "failed first: exit code 3" in done.stderr, done.stderr


def test_rows_that_run_often_are_known() -> None:
    assert {row.name for row in KNOWN} >= set(CELLS_OFTEN)


@pytest.mark.full
def test_pairs_by_chance_are_told_truly(request: pytest.FixtureRequest) -> None:
    """Another draw each day: `python -m tests.system.corpus.run --seed N --count 40` repeats it."""
    seed = int(time.time() // 86400)
    cells = [ran(row, request) for row in drawn(seed, 40)]
    odd = [cell for cell in cells if cell.false_yes or cell.false_no or cell.untrue]
    assert not [c for c in odd if c.false_yes or not c.false_no], (seed, odd)
    assert len(odd) <= 2, (seed, odd)
