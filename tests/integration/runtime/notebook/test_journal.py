"""Output that is kept where no browser sees it."""

from __future__ import annotations

import stat
from pathlib import Path

from tests.support.json_schema import validates

from fairlead.notebook.journal import Journal, cells, notebook
from fairlead.notebook.settings import JOURNAL


def noted(folder: Path) -> Journal:
    journal = Journal(folder)
    about = {"header": {"msg_id": "1"}}
    journal.note("execute_input", {"code": "run()", "execution_count": 4}, about)
    journal.note("stream", {"name": "stdout", "text": "a"}, about)
    journal.note("stream", {"name": "stdout", "text": "b\n"}, about)
    journal.note(
        "display_data",
        {"data": {"text/plain": "0%"}, "metadata": {}, "transient": {"display_id": "x"}},
        about,
    )
    journal.note(
        "update_display_data",
        {"data": {"text/plain": "9%"}, "metadata": {}, "transient": {"display_id": "x"}},
        about,
    )
    journal.note("status", {"execution_state": "idle"}, about)
    return journal


def test_cells_have_their_output_as_it_was_in_the_end(tmp_path: Path) -> None:
    noted(tmp_path)
    (cell,) = cells(tmp_path)
    assert (cell["code"], cell["count"]) == ("run()", 4)
    assert [o["output_type"] for o in cell["outputs"]] == ["stream", "display_data"]
    assert cell["outputs"][0]["text"] == "ab\n"
    assert cell["outputs"][1]["data"] == {"text/plain": "9%"}


@validates
def test_notebook_of_them_is_valid(tmp_path: Path) -> None:
    import nbformat  # it takes two seconds

    journal = noted(tmp_path)
    journal.note(
        "error", {"ename": "E", "evalue": "x", "traceback": ["E: x"]}, {"header": {"msg_id": "1"}}
    )
    nbformat.validate(nbformat.from_dict(notebook(tmp_path)))


def test_journal_that_was_cut_loses_one_message_and_is_private(tmp_path: Path) -> None:
    noted(tmp_path)
    path = tmp_path / JOURNAL
    path.write_bytes(path.read_bytes()[:-30])
    (cell,) = cells(tmp_path)
    assert cell["outputs"][1]["data"] == {"text/plain": "0%"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_cleared_output_is_gone(tmp_path: Path) -> None:
    noted(tmp_path).note("clear_output", {"wait": False}, {"header": {"msg_id": "1"}})
    assert cells(tmp_path)[0]["outputs"] == []
