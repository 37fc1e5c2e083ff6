"""Preflight's word on real NCCLs, plugins and libfabrics, compared with what loading each came to when it was recorded.

``tests/recorded/nccl/pairs.json`` has facts of their files, the interface that each NCCL takes of each plugin, and what
loading and initialising each plugin over each libfabric came to; ``record_pairs.py`` next to it makes it anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.support.nccl import gpu_image, gpu_plan

from fairlead.base.errors import Severity
from fairlead.base.serde import from_json
from fairlead.elf.facts import NcclLibrary
from fairlead.nccl.interfaces import row
from fairlead.nccl.model import Ask, HostNccl, HostNetwork, NcclRules
from fairlead.swap import checks

RECORD = Path(__file__).parents[3] / "recorded/nccl/pairs.json"


@cache
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text("utf-8"))
    return found


@dataclass(frozen=True)
class Pair:
    """An NCCL, a plugin over a libfabric, and what they came to.

    Attributes:
        takes: the interface that NCCL takes; 0: none.
        works: the loader and the plugin itself went along.
    """

    library: NcclLibrary
    release: str
    fabric: str
    network: HostNetwork
    takes: int
    works: bool
    words: str


def libraries() -> list[NcclLibrary]:
    kept = ({k: v for k, v in one.items() if k != "source"} for one in recorded()["libraries"])
    return [from_json(NcclLibrary, one) for one in kept]


def whole_network(found: dict[str, Any]) -> HostNetwork:
    files = recorded()["files"]
    whole = {**found, "closure": [files[path] for path in found.get("closure", ())]}
    for key in ("plugin", "tuner"):
        if key in found:
            whole[key] = {**found[key], "elf": files[found[key]["elf"]]}
    return from_json(HostNetwork, whole)


def pairs() -> Iterator[Pair]:
    by_name = {(one.version, one.runtime): one for one in libraries()}
    networks = {name: whole_network(one) for name, one in recorded()["networks"].items()}
    loads = {
        (release, fabric, runtime): done for release, fabric, runtime, done in recorded()["loads"]
    }
    for version, runtime, release, takes, _ in recorded()["takes"]:
        library = by_name[version, runtime]
        for name, network in networks.items():
            of, fabric = name.split(" ")
            if of == release:
                done = loads[release, fabric, runtime.partition(".")[0]]
                works = bool(takes) and done["initialises"]
                yield Pair(library, release, fabric, network, takes, works, done["words"])


def refusals(pair: Pair) -> tuple[int, list[str]]:
    """The planned interface, and the errors of a launch of that pair on a machine with nothing else against it."""
    runtime = pair.library.runtime
    facts = gpu_image(glibc=recorded()["glibc"])
    number = {"cuda11": "11.0"}.get(runtime.partition(".")[0], runtime[4:].partition(".")[0])
    name = f"libcudart.so.{number}"
    facts = replace(
        facts, nccl=(pair.library,), gpu_libraries={name: f"/opt/cuda/{name}"}, libstdcxx="3.4.30"
    )
    asked = Ask(gpus=True, nodes=2, host=HostNccl((pair.network,)), rules=NcclRules())
    plan = gpu_plan(facts, asked, mpi="container")
    assert plan.nccl
    found = [f for f in checks.check(plan) if f.check.startswith("nccl")]
    return plan.nccl.interface, [f.check for f in found if f.severity is Severity.ERROR]


def test_record_has_at_least_eight_of_each_side() -> None:
    every = list(pairs())
    assert len({(pair.library.version, pair.library.runtime) for pair in every}) >= 8
    assert len({pair.release for pair in every}) >= 8
    assert len({pair.fabric for pair in every}) >= 4
    assert any(pair.works for pair in every) and not all(pair.works for pair in every)


def test_preflights_word_on_every_pair_is_what_loading_came_to() -> None:
    wrong = []
    for pair in pairs():
        interface, errors = refusals(pair)
        allowed = not errors
        if allowed is not pair.works or (pair.works and interface != pair.takes):
            wrong.append(
                f"{pair.library.title} {pair.library.runtime}, {pair.release} over {pair.fabric}: "
                f"v{interface} {errors or 'allowed'}; really v{pair.takes}, works: {pair.works} {pair.words}"
            )
    assert not wrong, "\n".join([f"{len(wrong)} wrong", *wrong[:20]])


@pytest.mark.parametrize("one", recorded()["libraries"] if RECORD.is_file() else [])
def test_interfaces_of_a_real_library_are_those_of_its_sources_and_of_the_table(
    one: dict[str, Any],
) -> None:
    asked = one["asks"]["net"]
    assert not one["source"] or asked == one["source"]
    found = row(one["version"])
    assert found and asked == list(range(found.net[0], found.net[1] + 1))
    tuner = one["asks"].get("tuner", [])
    assert tuner == (list(range(found.tuner[0], found.tuner[1] + 1)) if found.tuner else [])
