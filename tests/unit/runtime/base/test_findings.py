"""Findings and the error that carries them, also from rank to rank."""

from __future__ import annotations

import copy
import pickle

import pytest
from tests.findings import error, fail

from fairlead.base import errors
from fairlead.base.errors import ExitCode, FairleadError
from fairlead.ml.data.samples import DamagedFile


@pytest.mark.parametrize(
    "given",
    [
        fail("a", where="b", why="c", remedy="d", check="e", code=ExitCode.USAGE),
        FairleadError([error("one"), error("two")]),
    ],
)
def test_error_that_is_pickled_or_copied_is_the_same(given: FairleadError) -> None:
    for found in (pickle.loads(pickle.dumps(given)), copy.copy(given)):
        assert type(found) is FairleadError and str(found) == str(given)
        assert (found.findings, found.code) == (given.findings, given.code)


def test_message_counts_by_one_or_several() -> None:
    for number, words in (
        (1, "1 rank left"),
        ("1", "1 rank left"),
        (2, "2 ranks left"),
        (0, "0 ranks left"),
    ):
        assert errors.error("aborted-unheard", unheard=number, started=3).what.startswith(words)


def test_damaged_file_that_is_pickled_keeps_its_findings(tmp_path: object) -> None:
    from pathlib import Path

    given = DamagedFile(Path("x.h5"), "is cut short", "an HDF5 file")
    assert pickle.loads(pickle.dumps(given)).findings == given.findings
