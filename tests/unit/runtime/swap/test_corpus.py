"""Preflight's answers against what really happened, on recorded facts: no MPI is needed here.

``tests/system/matrix.py`` ran every pair and recorded facts, answers and outcomes.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.support.recorded import CACHE, HYDRA, OPENMPI, ROOT_ENGINE, SITE

from fairlead.base.errors import FairleadError, Severity
from fairlead.base.serde import from_json
from fairlead.elf.facts import AbiFamily, ImageFacts
from fairlead.launchers.model import Launcher
from fairlead.mpi.host import HostMpi
from fairlead.swap import checks
from fairlead.swap.family import choose_host, image_family
from fairlead.swap.model import Inputs, Request
from fairlead.swap.plan import plan

FOLDER = Path(__file__).parents[3] / "recorded/matrix"
CELLS: list[dict[str, Any]] = json.loads((FOLDER / "cells.json").read_text())
COMMANDS = {
    "C": ("/opt/app/allreduce",),
    "mpi4py": ("python3", "/opt/app/allreduce.py"),
    "torch": ("python3", "/opt/app/step.py"),
}


@cache
def image(name: str) -> ImageFacts:
    return from_json(ImageFacts, json.loads((FOLDER / f"image-{name}.json").read_text()))


@cache
def host(name: str) -> tuple[HostMpi, ...]:
    output = json.loads((FOLDER / f"host-{name}.json").read_text())
    return tuple(from_json(HostMpi, one) for one in output)


def refused(cell: dict[str, Any]) -> list[str]:
    """The checks that refuse a pair, from facts alone."""
    facts, named = image(cell["image"]), host(cell["host"])
    request = Request(ranks=2, command=COMMANDS[cell["app"]])
    family = image_family(facts)
    own = next((m for m in named if m.library.family is family), None)
    chosen = own or choose_host(facts, named, request)[0] or named[0]
    other = OPENMPI if chosen.library.family is AbiFamily.OPENMPI else HYDRA
    launcher: Launcher = chosen.launcher or other
    try:
        made = plan(Inputs("/x.sif", facts, chosen, launcher, SITE, ROOT_ENGINE, request, CACHE))
    except FairleadError as exc:
        return [f.check for f in exc.findings]
    found = [f.check for f in checks.check(made) if f.severity is Severity.ERROR]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: f"{c['image']}-{c['host']}-{c['app']}")
def test_answer_from_recorded_facts_is_the_recorded_one(cell: dict[str, Any]) -> None:
    assert refused(cell) == cell["refused"]


def test_corpus_has_no_false_yes_and_hardly_a_false_no() -> None:
    assert len(CELLS) >= 50
    assert [c for c in CELLS if not refused(c) and not c["works"]] == []
    assert len([c for c in CELLS if refused(c) and c["works"]]) <= 2


def test_corpus_speaks_of_no_machine() -> None:
    for path in FOLDER.iterdir():
        text = path.read_text()
        assert "/root" not in text and "/home" not in text and "/.cache" not in text, path
