"""The core between thousands of nodes: its sums and training steps, simulated by SimGrid, next to ``fairlead project``
and published figures.

Nothing here was measured on such a machine. The simulation is held against what this machine can show: two hosts and a
cable. It runs for a quarter of an hour on two cores: ``make bench-scale``.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tests.system import hosts
from tests.system.netns import launcher, two_hosts
from tools.published_scaling import CASES, Case, fit

from benchmarks import simulation
from benchmarks.bars.comm_link import limit
from benchmarks.result import Benchmark, Compared, Result, absolute, compare
from benchmarks.simulation import MACHINES, Job, Machine, simulate
from benchmarks.tables import finished
from fairlead.base.paths import cache_dir
from fairlead.native import CORE, ensure
from fairlead.perf.draw.charts import Figure, Series, chart, decades, linear
from fairlead.perf.draw.svg_file import picture
from fairlead.perf.projection.cost_model import Algorithm
from fairlead.perf.projection.spread import Spread
from fairlead.perf.projection.step_model import Fabric, Work, step

_HOSTS = Path(__file__).parents[1] / "programs" / "network_hosts.py"
# What a rank's step varies by from step to step, relative: of no source; the middle of what published figures leave open.
DEVIATION = 0.05
# A frame of Ethernet carries 1448 of its 1538 bytes.
_CABLE, _PAYLOAD = 1e9, 1448 / 1538
_POINTS, _CALIBRATION, _CHECK = 10, 1.15, 2
# Delayed steps: simulated with their messages, and by what nodes wait for.
_FEW, _STEPS = 12, 2000
# SimGrid solves for the rates of all flows: from so many nodes on, sums are cut in fewer pieces.
_MANY = 1024


@dataclass(frozen=True)
class Model:
    """Of a training: gradients, and computing of a step on one node.

    Attributes:
        home: the machine of its published or likely runs; simulated on more nodes than others.
        most_nodes: there.
    """

    name: str
    size: float
    compute_s: float
    source: str
    home: str
    most_nodes: int


MODELS = (
    Model("HEP-CNN", 2.4e6, 0.26, "8 images: 126 Gflop, counted, at the rate of CosmoFlow's computing", "aries", 4096),
    Model("CosmoFlow", 28.2e6, 0.13, "tools/published_scaling.py: counted, and arXiv:1808.04728", "aries", 8192),
    Model("ResNet-50", 102.2e6, 0.18, "tools/published_scaling.py: 64 images on a V100, 0.1 to 0.4 s", "fat-tree", 4096),
)  # fmt: skip


@dataclass(frozen=True)
class Effort:
    """How much is simulated; on ``home_nodes``, steps on a model's own machine and, to 4,096, a sum on each."""

    nodes: tuple[int, ...] = (2, 16, 128)
    home_nodes: tuple[int, ...] = (1024, 4096, 8192)
    machines: tuple[str, ...] = tuple(MACHINES)
    models: tuple[Model, ...] = MODELS
    sizes: tuple[float, ...] = (8, 65536, 2.4e6, 28.2e6, 102.2e6)
    steps: int = 3
    rounds: int = 7
    published: bool = True


def measure(effort: Effort = Effort()) -> Result:
    """Rows: seconds of sums, steps over computing, differences from the projection and from published figures."""
    wrong = [0.0]
    tasks: list[Callable[[], Iterator[Compared]]] = []
    for nodes in (*effort.nodes, *effort.home_nodes):
        home = nodes in effort.home_nodes
        steps = 1 if nodes >= _MANY else effort.steps
        for machine in (MACHINES[name] for name in effort.machines):
            sizes = effort.sizes if not home else effort.sizes[-2:-1] if nodes <= 4096 else ()
            tasks += [partial(_summed, machine, nodes, size, wrong) for size in sizes]
            models = [
                one
                for one in effort.models
                if not home or (one.home == machine.name and nodes <= one.most_nodes)
            ]
            tasks += [partial(_steps, machine, nodes, model, steps, wrong) for model in models]
    if effort.published:
        tasks += [partial(_published, case, wrong) for case in CASES]

    def done(task: Callable[[], Iterator[Compared]]) -> list[Compared]:
        found = list(task())
        print(f"  {found[0].name}", flush=True)
        return found

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        rows = [row for found in pool.map(done, tasks) for row in found]
    if effort.rounds and os.geteuid() == 0:
        rows += calibrated(effort.rounds, wrong)
    rows.append(absolute("wrong elements of all simulated sums", [sum(wrong)], 0, "elements"))
    version = subprocess.run(["smpicxx", "--version"], capture_output=True, text=True, check=True)
    return Result(
        "scale",
        "the core's sums between nodes and training steps with them, simulated by SimGrid's SMPI, one rank a node",
        "fairlead project on the same figures; published efficiencies; two hosts of this machine",
        tuple(rows),
        {
            "simgrid": version.stdout.split()[2],
            "deviation of a step": f"{DEVIATION}",
            **{f"machine {name}": MACHINES[name].source for name in effort.machines},
            **{f"model {m.name}": f"{m.compute_s} s a step; {m.source}" for m in effort.models},
        },
    )


def _size(size: float) -> str:
    return next(
        f"{size / s:g} {unit}" for s, unit in ((1e6, "MB"), (1e3, "kB"), (1, "B")) if size >= s
    )


def _named(job: Job) -> str:
    return f"{job.algorithm} of {job.group}" if job.group else job.algorithm


def _scale(size: float, nodes: int) -> float:
    """So many times fewer bytes: a few hundred MB of all ranks, at least a few elements of each."""
    return max(1.0, min(size * nodes / 2e8, size / (8 * nodes)))


def _summed(machine: Machine, nodes: int, size: float, wrong: list[float]) -> Iterator[Compared]:
    pieces = 1 if size < 1e6 else _pieces(nodes)
    jobs = [Job("halving", size, pieces)]
    if size <= 1e5:
        jobs.append(Job("doubling", size))
    elif nodes <= _MANY // 16:
        jobs.append(Job("ring", size, pieces))
    if size > 1e5 and nodes % machine.near == 0 and 2 * machine.near < nodes < _MANY:
        jobs.append(Job("groups", size, pieces, group=machine.near))
    if nodes <= _MANY // 8:
        jobs.append(Job("auto", size, pieces))
    for job, answer in zip(jobs, simulate(machine, nodes, jobs, _scale(size, nodes)), strict=True):
        wrong.append(answer["wrong"])
        title = f"sum: {machine.name}, {nodes} nodes, {_size(size)}, {_named(job)}"
        yield absolute(title, [answer["seconds"]], None)


def _pieces(nodes: int) -> int:
    return 4 if nodes < _MANY else 2 if nodes == _MANY else 1


def _steps(
    machine: Machine, nodes: int, model: Model, steps: int, wrong: list[float]
) -> Iterator[Compared]:
    """Synchronous and delayed steps over computing alone, and the projection of the same."""
    pieces, compute = _pieces(nodes), model.compute_s
    jobs = [
        Job("halving", model.size, pieces, steps=steps, compute_s=compute, deviation=DEVIATION),
        Job("halving", model.size, pieces),
    ]
    if nodes < _MANY:
        jobs.append(replace(jobs[0], steps=_FEW, delayed=True))
    fabric = Fabric(machine.bandwidth, 2 * (machine.hop_s + machine.overhead_s))
    work = Work(compute, model.size)
    answers = simulate(machine, nodes, jobs, _scale(model.size, nodes))
    wrong += [answer["wrong"] for answer in answers]
    seconds = [answer["seconds"] for answer in answers]
    # A lead of the slowest node at the end is waited for in a run that goes on, so delayed steps have to be many.
    endless = stepped(nodes, 1, compute, seconds[1], delayed=True)
    for how, step_s in (("synchronous", seconds[0]), ("delayed", endless)):
        projected = step(work, fabric, Spread(0.0, DEVIATION), nodes, delayed=how == "delayed")
        title = f"{model.name}, {machine.name}, {nodes} nodes, {how}"
        yield from _against(title, compute, step_s, projected.efficiency)
    if nodes < _MANY:
        few = stepped(nodes, 1, compute, seconds[1], delayed=True, steps=_FEW, last=True)
        off = 100 * abs(seconds[2] / few - 1)
        title = f"{model.name}, {machine.name}, {nodes} nodes, {_FEW} delayed steps"
        yield absolute(
            f"check: {title}: simulated messages from a simulated sum", [off], _CHECK, "%"
        )


def stepped(
    nodes: int,
    ranks: int,
    compute_s: float,
    sum_s: float,
    *,
    delayed: bool,
    steps: int = _STEPS,
    last: bool = False,
) -> float:
    """Seconds of a step of many, by what a node waits for: in each step the slowest of its ranks computes, and a sum begins
    when all nodes have begun the step (delayed, of what the one before has computed) or have computed.

    Args:
        last: the slowest node's time at the end counts, else the mean of all nodes.
    """
    random = np.random.default_rng(17)
    at = np.zeros(nodes)
    for _ in range(steps):
        draws = random.lognormal(-(DEVIATION**2) / 2, DEVIATION, (nodes, ranks)).max(axis=1)
        done = at + compute_s * draws
        at = np.maximum(done, at.max() + sum_s) if delayed else np.full(nodes, done.max() + sum_s)
    return float(at.max() if last else at.mean()) / steps


def _against(title: str, compute_s: float, seconds: float, projected: float) -> Iterator[Compared]:
    yield compare(f"step: {title}: over computing", [seconds], [compute_s], None)
    yield compare(f"projected: {title}: over computing", [1 / projected], [1.0], None)
    off = 100 * abs(compute_s / seconds - projected)
    yield absolute(f"points: {title}: simulation from projection", [off], _POINTS, "points")


def _published(case: Case, wrong: list[float]) -> Iterator[Compared]:
    """A published figure, simulated with the same assumptions as the projection, on its kind of network."""
    compute, bandwidth, latency = (
        one.value for one in (case.compute_s, case.bandwidth, case.latency_s)
    )
    machine = simulation.flat(bandwidth, latency, case.nodes)
    algorithm = "ring" if case.algorithm is Algorithm.RING else "halving"
    size = 4.0 * case.parameters
    ranks = case.ranks // case.nodes
    job = Job(algorithm, size, 1, steps=1, compute_s=compute, deviation=DEVIATION, ranks=ranks)
    (answer,) = simulate(machine, case.nodes, [job], _scale(size, case.nodes))
    wrong.append(answer["wrong"])
    hidden = stepped(case.nodes, ranks, compute, 0.0, delayed=False, steps=_STEPS // 10)
    unfitted = next(one.value for one in fit(()).predicted if one.case is case)
    yield compare(f"published: {case.what}", [1 / case.efficiency], [1.0], None)
    yield compare(f"projected: {case.what}", [1 / unfitted], [1.0], None)
    for how, seconds in (("nothing hidden", answer["seconds"]), ("all hidden", hidden)):
        yield compare(f"step: {case.what}: {how}", [seconds], [compute], None)


def calibrated(rounds: int, wrong: list[float]) -> Iterator[Compared]:
    """The core on two hosts of this machine over the simulation of their cable."""
    mpich = hosts.mpich()
    with two_hosts() as pair:
        for host in pair:
            limit(host, _CABLE)
        start = launcher(pair[0], mpich / "bin/mpiexec.hydra")
        words = pair[0].words(start, "-n", "2", sys.executable, _HOSTS)
        environ = {
            **os.environ, "LD_LIBRARY_PATH": str(mpich / "lib"), "UCX_TLS": "self,tcp", "OMP_NUM_THREADS": "1",
            "FAIRLEAD_COMM_LIBRARY": str(ensure(CORE, cache_dir())),
        }  # fmt: skip
        pinned = {**environ, "FAIRLEAD_COMM_ALGORITHM": "halving"}
        (latency,) = _lines([*words, "0"], environ)
        lines = _lines([*words, str(rounds)], pinned)
    machine = simulation.cable(_CABLE / 8 * _PAYLOAD, float(latency))
    for line in lines:
        size, *samples = map(float, line.split())
        # As the core cuts it: halves of up to 768 kB.
        job = Job("halving", size, max(2, math.ceil(size / (768 << 10))))
        (answer,) = simulate(machine, 2, [job])
        wrong.append(answer["wrong"])
        name = f"two hosts, 1 Gbit/s, {_size(size)}: measured over the simulation"
        ratio = compare(name, samples, [answer["seconds"]] * len(samples), None)
        off = max(ratio.value, 1 / ratio.value)
        yield ratio
        yield absolute(f"{name}, off by a factor", [off], _CALIBRATION, "times")


def _lines(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"two hosts: exit code {done.returncode}: {done.stderr}")
    return done.stdout.splitlines()


def _table(result: Mapping[str, Any]) -> str:
    rows = {row["name"]: row for row in result["rows"]}
    lines = [*_step_lines(rows), "", *_published_lines(rows), *_sum_lines(rows), ""]
    return finished(lines + _judged_lines(result["rows"]), result)


def _percents(rows: Mapping[str, Any], names: Iterable[str]) -> str:
    return " | ".join(f"{100 / rows[name]['value']:.0f} %" for name in names)


def _step_lines(rows: Mapping[str, Any]) -> list[str]:
    """Efficiencies of the models' steps."""
    lines = [
        "| model, machine | nodes | synchronous: simulated | projected | delayed: simulated | projected |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in rows:
        kind, _, title = name.partition(": ")
        if kind != "step" or not title.endswith("synchronous: over computing"):
            continue
        model, machine, nodes = title.split(", ")[:3]
        names = [
            f"{what}: {title}".replace("synchronous", how)
            for how in ("synchronous", "delayed")
            for what in ("step", "projected")
        ]
        count = int(nodes.split()[0])
        lines.append(f"| {model}, {machine} | {count:,} | {_percents(rows, names)} |")
    return lines


def _published_lines(rows: Mapping[str, Any]) -> list[str]:
    """Published efficiencies."""
    lines = [
        "| case | published | projected | simulated: nothing hidden | all hidden |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in rows:
        kind, _, case = name.partition(": ")
        if kind == "published":
            steps = (f"step: {case}: {how}" for how in ("nothing hidden", "all hidden"))
            lines.append(f"| {case} | {_percents(rows, (name, f'projected: {case}', *steps))} |")
    return [*lines, ""] if len(lines) > 2 else []


def _sum_lines(rows: Mapping[str, Any]) -> list[str]:
    """Sums of more than two nodes, the fastest algorithm first."""
    sums: dict[tuple[str, str, str], dict[str, float]] = {}
    for name, row in rows.items():
        if name.startswith("sum: ") and ", 2 nodes, " not in name:
            machine, nodes, size, algorithm = name.removeprefix("sum: ").split(", ")
            sums.setdefault((machine, size, nodes), {})[algorithm] = 1e3 * row["samples"][0]
    lines = ["| a sum, machine | nodes | milliseconds |", "| --- | ---: | --- |"]
    for (machine, size, nodes), each in sums.items():
        times = ", ".join(f"{key} {each[key]:.3g}" for key in sorted(each, key=each.__getitem__))
        lines.append(f"| {size}, {machine} | {int(nodes.split()[0]):,} | {times} |")
    return lines


def _judged_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What has a bar: of the differences from the projection, those that miss it, and all in one line."""
    lines = ["| what | value | bar | |", "| --- | --- | --- | --- |"]
    points = [row for row in rows if row["name"].startswith("points: ")]
    checks = [row for row in rows if row["name"].startswith("check: ")]
    for row in rows:
        if row["bar"] is None or (row in (*points, *checks) and row["met"]):
            continue
        verdict = "met" if row["met"] else "missed"
        lines.append(f"| {row['name']} | {row['value']:.3g} | {row['bar']:g} | {verdict} |")
    if off := [row["value"] for row in points]:
        lines.append(
            f"| efficiency, simulation from projection, {len(off)} runs: median; most, points"
            f" | {median(off):.1f}; {max(off):.1f} | {_POINTS} | |"
        )
    if off := [row["value"] for row in checks]:
        lines.append(
            f"| {_FEW} delayed steps, simulated messages from a simulated sum, {len(off)} runs: median; most, %"
            f" | {median(off):.1f}; {max(off):.1f} | {_CHECK} | |"
        )
    return lines


def _picture(result: Mapping[str, Any]) -> str:
    """Efficiency by nodes, a panel a model; delayed steps hardly differ between machines, so one is drawn."""
    figures = []
    homes = {one.name: one.home for one in MODELS}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in result["rows"]:
        kind, _, title = row["name"].partition(": ")
        parts = title.removesuffix(": over computing").split(", ")
        if kind == "step" and title.endswith(": over computing"):
            model, machine, nodes, how = parts
            if how == "delayed" and machine != homes[model]:
                continue
            line = found.setdefault(model, {}).setdefault(f"{machine}, {how}", [])
            line.append((float(nodes.split()[0]), 100 / row["value"]))
    styles = dict(zip(MACHINES, "abc", strict=True))
    for model, lines in found.items():
        series = tuple(
            Series(name, tuple(sorted(points)), "ideal" if name.endswith("delayed") else styles[name.partition(",")[0]])
            for name, points in lines.items()
        )  # fmt: skip
        xs = [x for one in series for x, _ in one.points]
        svg = chart(
            decades(xs, "nodes"), linear(40.0, 100.0, "efficiency of a step, %"), series, model
        )
        legend = tuple((one.style, one.name) for one in series)
        figures.append(Figure(model, "simulated; one rank a node", svg, legend))
    return picture(figures)


BENCHMARKS = (Benchmark("scale", 135, measure, _table, _picture),)
