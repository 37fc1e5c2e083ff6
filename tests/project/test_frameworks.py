"""The table of frameworks is that of the kept cells."""

from __future__ import annotations

from pathlib import Path

from tests.system.frameworks.run import names, read
from tools import frameworks_page

ROOT = Path(__file__).parents[2]


def test_page_is_generated_from_the_cells() -> None:
    assert (ROOT / frameworks_page.PAGE).read_text() == frameworks_page.page()


def test_every_cell_was_run_and_none_is_a_world_of_one() -> None:
    cells, _ = read()
    assert [cell.name for cell in cells] == names()
    # What is not a world has ended with an error.
    assert all(cell.code or not cell.wrong for cell in cells)
