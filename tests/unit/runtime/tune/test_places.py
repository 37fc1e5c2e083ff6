"""Where trials run at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.base.errors import FairleadError
from fairlead.schedulers.model import Allocation
from fairlead.tune.places import Hosts, Places, Steps, of_machine, visible_gpus

CORES = sorted(os.sched_getaffinity(0))


def _cores(*asked: int | None) -> list[tuple[int, ...]]:
    return [place.cores for place in of_machine(*asked)]


def test_trials_have_cores_of_their_own_as_long_as_there_are_enough() -> None:
    assert [core for group in _cores(1, None) for core in group] == CORES
    assert _cores(len(CORES), None) == [tuple(CORES)]
    assert _cores(1, 1) == [(CORES[0],)]
    assert _cores(10 * len(CORES), None) == [tuple(CORES)], "more ranks than cores"
    assert _cores(1, len(CORES) + 1) == [()] * (len(CORES) + 1), "they share"


def test_trials_have_gpus_of_their_own() -> None:
    found = of_machine(1, 8, gpus=2, there=["0", "1", "2", "5", "7"])
    assert [place.env for place in found] == [
        {"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,5"},
    ]  # fmt: skip
    assert of_machine(1, 2)[0].env == {}
    with pytest.raises(FairleadError, match="a trial wants 2 GPUs, and there are 1"):
        of_machine(1, 1, gpus=2, there=["0"])
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-1,3"}) == ["GPU-1", "3"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []


def _count(places: Places) -> int:
    taken = []
    while place := places.take():
        taken.append(place)
    for place in taken:
        places.give(place)
    return len(taken)


def _slurm(folder: Path, down: str = "") -> dict[str, str]:
    """A machine whose sinfo reports nodes as down."""
    program = folder / "sinfo"
    program.write_text("#!/bin/sh\n" + "".join(f"echo {host} down\n" for host in down.split()))
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_steps_of_a_job_are_as_many_as_have_cores_on_the_nodes_that_are_left(
    tmp_path: Path,
) -> None:
    job = Allocation("slurm", "1", 4, ("a", "b", "c", "d"), 64)
    environ = _slurm(tmp_path)
    assert _count(Steps(job, 4, None, environ)) == 16
    assert _count(Steps(job, 128, None, environ)) == 1
    assert _count(Steps(job, 4, 3, environ)) == 3
    steps = Steps(job, 4, None, environ)
    assert steps.look() == [] and not steps.gone
    _slurm(tmp_path, "b d")
    assert steps.look() == ["b", "d"] and steps.look() == []
    assert _count(steps) == 8 and not steps.exhausted
    _slurm(tmp_path, "a b c d")
    steps.look()
    assert steps.exhausted and steps.take() is None


def test_hosts_are_given_to_trials_in_groups_and_those_that_are_gone_to_none(
    tmp_path: Path,
) -> None:
    names = [f"no-such-host-{n}" for n in range(1, 6)]
    hosts = Hosts(names, 2, None, environ=_slurm(tmp_path))
    one, two = hosts.take(), hosts.take()
    assert one and two and hosts.take() is None
    assert len({*one.hosts, *two.hosts}) == 4
    assert hosts.look(one.hosts[0]) == [one.hosts[0]]
    hosts.give(one)
    third = hosts.take()
    assert third and set(third.hosts).isdisjoint({one.hosts[0], *two.hosts})
    hosts.give(two)
    hosts.give(third)
    for host in names[1:]:
        hosts.look(host)
    assert hosts.exhausted and hosts.take() is None


def test_hosts_are_shared_where_more_trials_are_to_run_at_once() -> None:
    hosts = Hosts(["a", "b"], 1, 3)
    taken = [hosts.take() for _ in range(3)]
    assert sorted(place.hosts[0] for place in taken if place) in (["a", "a", "b"], ["a", "b", "b"])
    assert hosts.take() is None
    with pytest.raises(FairleadError, match="a trial wants 3 nodes, and there are 2"):
        Hosts(["a", "b"], 3, None)
