"""Horovod's own test suite against the drop-in; see tests/peers/horovod_suite.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.peers import horovod_suite
from tools import horovod_page

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full
@pytest.mark.parametrize("kept", horovod_page.results(ROOT), ids=lambda kept: kept.file)
def test_tests_that_passed_pass(kept: horovod_suite.Outcomes, tmp_path: Path) -> None:
    if horovod_suite.source() is None:
        pytest.skip(
            f"{horovod_suite.SOURCE} is out of reach, and HOROVOD_SOURCE names no repository"
        )
    found = horovod_suite.run(replace(kept, tests={}), tmp_path)
    known = horovod_page.reasons(ROOT).get(kept.file, {})
    failed = {name: test for name, test in found.tests.items() if test.outcome == "failed"}
    assert not {*failed} - {*known}, failed
    assert found.share >= 0.85
