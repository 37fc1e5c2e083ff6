"""Horovod's own test suite against the drop-in; see tests/peers/horovod_suite.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.peers import horovod_parameters, horovod_suite
from tools import horovod_page

ROOT = Path(__file__).resolve().parents[2]


# One of each: asynchronous, in any order, with gradients, among some ranks, with a failure, sparse.
FEW = (
    "test_horovod_allreduce_async_fused",
    "test_horovod_join_allreduce",
    "test_horovod_reducescatter_grad",
    "test_horovod_alltoall_process_sets",
    "test_horovod_allgather_error",
    "test_async_sparse_allreduce",
)


def suite() -> None:
    if horovod_suite.source() is None:
        pytest.skip(
            f"{horovod_suite.SOURCE} is out of reach, and HOROVOD_SOURCE names no repository"
        )


def test_a_few_tests_pass(tmp_path: Path) -> None:
    suite()
    wanted = horovod_suite.Outcomes("parallel/test_torch.py", "pytorch", 2)
    found = horovod_suite.run(wanted, tmp_path, rf"^({'|'.join(FEW)})$")
    assert {name: test.outcome for name, test in found.tests.items()} == dict.fromkeys(
        FEW, "passed"
    )


@pytest.mark.full
def test_recorded_parameters_are_those_of_the_source() -> None:
    suite()
    source = horovod_suite.source()
    assert source is not None
    kept = json.loads(horovod_parameters.RECORD.read_text())
    assert horovod_parameters.read(source.parent / "horovod") == kept


@pytest.mark.full
@pytest.mark.parametrize(
    "kept", horovod_page.results(ROOT), ids=lambda kept: f"{kept.file} {kept.ranks}"
)
def test_tests_that_passed_pass(kept: horovod_suite.Outcomes, tmp_path: Path) -> None:
    suite()
    found = horovod_suite.run(replace(kept, tests={}), tmp_path)
    known = horovod_page.reasons(ROOT).get(kept.file, {})
    failed = {name: test for name, test in found.tests.items() if test.outcome == "failed"}
    assert not {*failed} - {*known}, failed
    assert found.share >= 0.85
