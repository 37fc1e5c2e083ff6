"""Frameworks from PyPI under the launchers that can be started here: each cell is one world, as recorded."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.system.frameworks import run
from tests.system.frameworks.run import Machine, machine, read

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces"),
]


@pytest.fixture(scope="module")
def made() -> Iterator[Machine]:
    with machine() as both:
        yield both


@pytest.mark.parametrize("cell", read()[0], ids=lambda cell: cell.name)
def test_framework_under_a_launcher_is_as_recorded(cell: run.Cell, made: Machine) -> None:
    seen = made.run(cell.name)
    assert bool(seen.wrong) == bool(cell.wrong), seen
