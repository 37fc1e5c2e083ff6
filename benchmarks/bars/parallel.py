"""Ranks that do not all do the same: a pipeline's idle share, two teams at once, workers that fall out of step.

``pipeline`` compares the idle share of equal stages with its formula, ``pipeline-torch`` a step with that of
torch.distributed.pipelining. ``teams`` trains a GAN-like pair of networks over a
cable of limited rate. ``stale`` has one of two workers pause, and compares synchronous steps, a bound on staleness and
TensorFlow's parameter server.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from tests.system.netns import launcher, two_hosts

from benchmarks.bars.comm_link import limit
from benchmarks.pictures import milliseconds
from benchmarks.result import Benchmark, Compared, Result, compare
from benchmarks.sides import Job, Side, free_ports, image, slowest, started
from benchmarks.tables import finished, plain, verdict
from fairlead.comm.pipeline import SCHEDULES, Move, bubble, step_time
from fairlead.doctor.install.host_mpi import install_wheel_mpi
from fairlead.perf.draw.charts import BarRow, Figure, Series, bars, chart, linear
from fairlead.perf.draw.svg_file import picture
from fairlead.perf.draw.wording import percent

STAGES, _IDLE_BAR, _TEAMS_BAR = 2, 0.05, 0.85
PAUSES = {
    "none": "no pause",
    "turns": "each pauses now and then",
    "always": "one worker half as fast",
}
MODES = {
    "allreduce": "synchronous",
    "0": "bound 0",
    "4": "bound 4",
    "none": "no bound",
    "ps": "parameter server",
}
# Without any cost, 3/4 and 2/3 of the synchronous time.
_STALE_BARS = {("turns", "4"): 0.85, ("always", "none"): 0.8}
_PROGRAM = "parallel_steps.py"
_WAYS = ("fairlead", "torch")


# --- the pipeline --------------------------------------------------------------------------------


def measure_pipeline(
    microbatches: Sequence[int] = (1, 2, 4, 8, 16), rounds: int = 5, steps: int = 3
) -> Result:
    """Rows: the idle share of two stages, less that of the formula.

    Raises:
        RuntimeError: the schedules have other gradients.
    """
    shares: dict[tuple[str, int], list[float]] = {}
    uneven: dict[tuple[str, int], list[float]] = {}
    cases = [(name, m) for m in microbatches for name in SCHEDULES]
    with started({"pipeline": lambda: Job(image("mpi-base"), [_PROGRAM, "pipeline"])}) as sides:
        (side,) = sides.values()
        for number in range(rounds):
            at = number % len(cases)
            digests: dict[int, set[str]] = {}
            for name, m in cases[at:] + cases[:at]:
                with side.turn():
                    side.ask("steps", schedule=name, microbatches=m, repeats=1)
                    ranks = side.ask("steps", schedule=name, microbatches=m, repeats=steps)
                    digests.setdefault(m, set()).add("".join(side.ask("digest")))
                pairs = [idle_shares(name, m, step) for step in zip(*ranks, strict=True)]
                shares.setdefault((name, m), []).append(median(share for share, _ in pairs))
                uneven.setdefault((name, m), []).append(median(share for _, share in pairs))
            if any(len(found) > 1 for found in digests.values()):
                raise RuntimeError(f"the schedules have other gradients: {digests}")
    rows = [
        compare(
            f"{name}, {m} microbatches",
            own,
            [bubble(STAGES, m)] * len(own),
            _IDLE_BAR,
            kind="difference",
            unit="",
        )
        for (name, m), own in shares.items()
    ]
    for (name, m), own in shares.items():
        words = f"{name}, {m} microbatches, over the schedule of the measured passes"
        rows.append(compare(words, own, uneven[name, m], _IDLE_BAR, kind="difference", unit=""))
    return Result(
        "pipeline",
        f"the share of a step in which {STAGES} equal stages, a core each, have nothing to do",
        "the formula, (p - 1) / (m + p - 1); the schedule, of passes that take as long as measured, without messages",
        tuple(rows),
        {"rounds": str(rounds), "steps a round": str(steps)},
    )


def idle_shares(name: str, microbatches: int, step: Sequence[Any]) -> tuple[float, float]:
    """Of a step, and of the same one if messages took no time.

    Args:
        step: each rank's seconds of it, and its passes: whether backward, which microbatch, seconds.

    >>> one, two = [(False, 0, 1.0), (True, 0, 2.0)], [(False, 0, 1.0), (True, 0, 3.0)]
    >>> idle_shares("gpipe", 1, [(10.0, one), (9.0, two)])
    (0.65, 0.5)
    """
    seconds = {
        (stage, Move(bool(backward), at)): s
        for stage, (_, passes) in enumerate(step)
        for backward, at, s in passes
    }
    busy = sum(seconds.values()) / len(step)
    whole = step_time(
        SCHEDULES[name], len(step), microbatches, lambda stage, move: seconds[stage, move]
    )
    return 1 - busy / max(s for s, _ in step), 1 - busy / whole


def _pipeline_table(result: Mapping[str, Any]) -> str:
    """A row a number of microbatches and schedule."""
    rows = {row["name"]: row for row in result["rows"]}
    lines = [
        "| microbatches | | formula | measured | bar, 5 points more | of the measured passes | measured over these |"
    ]
    lines.append("| ---: | --- | ---: | --- | --- | ---: | --- |")
    plain_rows = [row for row in result["rows"] if row["name"].endswith(" microbatches")]
    for row in sorted(plain_rows, key=lambda r: int(r["name"].split()[1])):
        name, count, _ = row["name"].split()
        other = rows[f"{row['name']}, over the schedule of the measured passes"]
        measured = (
            f"{100 * median(row['samples']):.1f} % [{_share(row, 'low')}, {_share(row, 'high')}]"
        )
        points = [f"{100 * other[key]:.1f}" for key in ("value", "low", "high")]
        lines.append(
            f"| {count} | {name.strip(',')} | {100 * row['baseline'][0]:.1f} % | {measured} | {verdict(row)}"
            f" | {100 * median(other['baseline']):.1f} % | {points[0]} points [{points[1]}, {points[2]}], {verdict(other)} |"
        )
    return finished(lines, result)


def _share(row: Mapping[str, Any], end: str) -> str:
    return f"{100 * (row['baseline'][0] + row[end]):.1f}"


def _pipeline_picture(result: Mapping[str, Any]) -> str:
    points: dict[str, list[tuple[float, float]]] = {}
    bounds: dict[float, float] = {}
    plain_rows = [row for row in result["rows"] if row["name"].endswith(" microbatches")]
    for row in plain_rows:
        name, _, words = row["name"].partition(", ")
        count = float(words.split()[0])
        bounds[count] = row["baseline"][0]
        points.setdefault(name, []).append((count, median(row["samples"])))
    lines = [Series("formula", tuple(sorted(bounds.items())), "bound", marks=False)]
    for style, (name, own) in zip("ab", points.items(), strict=False):
        lines.append(Series(name, tuple(sorted(own)), style))
    top = 1.1 * max(median(row["samples"]) for row in plain_rows)
    axis = linear(0, max(bounds) * 1.05, "microbatches")
    svg = chart(axis, linear(0, top, "idle share", percent), lines, "Idle share of two stages")
    legend = (("a", next(iter(points))), ("b", list(points)[-1]), ("bound", "formula"))
    return picture([Figure("Idle share of two stages", "of a step", svg, legend)])


# --- the pipeline, next to torch's ---------------------------------------------------------------


def measure_torch(
    microbatches: Sequence[int] = (2, 4, 16), rounds: int = 5, steps: int = 3
) -> Result:
    """Rows: a step of torch's layers by fairlead over one by ``torch.distributed.pipelining``.

    Raises:
        RuntimeError: they have other gradients.
    """
    cases = [(way, name, m) for m in microbatches for name in SCHEDULES for way in _WAYS]
    seconds: dict[tuple[str, str, int], list[float]] = {}
    with started({"torch": lambda: Job(image("pytorch"), ["parallel_torch.py"])}) as sides:
        (side,) = sides.values()
        for number in range(rounds):
            at = (2 * number) % len(cases)
            sums: dict[tuple[str, int], list[Any]] = {}
            for way, name, m in cases[at:] + cases[:at]:
                words = {"way": way, "schedule": name, "microbatches": m}
                with side.turn():
                    side.ask("steps", repeats=1, **words)
                    ranks = side.ask("steps", repeats=steps, **words)
                    sums.setdefault((name, m), []).append(side.ask("gradients"))
                seconds.setdefault((way, name, m), []).append(median(slowest(ranks)))
            for case, (one, other) in sums.items():
                if not np.allclose(one, other, rtol=1e-4):
                    raise RuntimeError(f"{case}: gradients differ, {one} and {other}")
    rows = tuple(
        compare(
            f"{name}, {m} microbatches: step over torch's",
            seconds["fairlead", name, m],
            seconds["torch", name, m],
            1.0,
        )
        for m in microbatches
        for name in SCHEDULES
    )
    return Result(
        "pipeline-torch",
        f"a step of a pipeline of {STAGES} stages of torch layers, a core each, by fairlead's messages",
        "torch.distributed.pipelining on Gloo, the same layers and schedule",
        rows,
        {"rounds": str(rounds), "steps a round": str(steps)},
    )


def _torch_picture(result: Mapping[str, Any]) -> str:
    made = []
    for row in result["rows"]:
        name = row["name"].partition(":")[0]
        made.append(_bar(f"fairlead: {name}", median(row["samples"]), "a"))
        made.append(_bar(f"torch: {name}", median(row["baseline"])))
    top = 1.04 * max(row.value for row in made)
    svg = bars(made, linear(0, top, "ms", lambda s: f"{1e3 * s:g}"), "A step of two stages")
    return picture([Figure("A step of two stages of torch layers", "ms", svg)])


# --- two teams at once ---------------------------------------------------------------------------


def measure_teams(rounds: int = 7, steps: int = 3, rate: float = 0.5e9) -> Result:
    """Rows: a step with two teams at once over one with each network in turn, and over both fused; needs root."""
    if os.geteuid() != 0:
        raise RuntimeError("two hosts on one machine need root: they are namespaces")
    names = ("none", "only", "in_turn", "fused", "at_once")
    seconds: dict[str, list[float]] = {}
    with two_hosts() as pair:
        for host in pair:
            limit(host, rate)
        mpich = install_wheel_mpi("mpich", "5.0.2")
        mpiexec = launcher(pair[0], mpich / "bin/mpiexec.hydra")
        job = Job(
            image("mpi-base"), [_PROGRAM, "gan"], env={"UCX_TLS": "self,tcp"},
            run=("--mpi", str(mpich), "--launcher", str(mpiexec)), before=pair[0].words(),
        )  # fmt: skip
        with started({"gan": lambda: job}) as sides:
            (side,) = sides.values()
            times = _as_long_as_the_cable(side)
            for number in range(rounds):
                at = number % len(names)
                for name in names[at:] + names[:at]:
                    with side.turn():
                        ranks = side.ask("steps", mode=name, times=times, repeats=steps)
                    seconds.setdefault(name, []).append(median(slowest(ranks)))
    bound = [max(pair) for pair in zip(seconds["none"], seconds["only"], strict=True)]
    rows = (
        compare("two teams at once over one network after the other", seconds["at_once"], seconds["in_turn"], _TEAMS_BAR),
        compare("two teams at once over both fused", seconds["at_once"], seconds["fused"], None),
        compare("two teams at once over the longer of computing and moving", seconds["at_once"], bound, None),
        compare("computing over moving", seconds["none"], seconds["only"], None),
    )  # fmt: skip
    return Result(
        "teams",
        f"a step of two networks with 4 MB of gradients each, 2 ranks, {rate / 1e9:g} Gbit/s between their hosts",
        "the same, blocking, in turns",
        rows,
        {"rounds": str(rounds), "steps a round": str(steps)},
    )


def _as_long_as_the_cable(side: Side) -> int:
    """How many products make computing take as long as moving."""
    with side.turn():
        side.ask("steps", mode="only", times=0, repeats=2)
        moving = median(slowest(side.ask("steps", mode="only", times=0, repeats=3)))
        computing = median(slowest(side.ask("steps", mode="none", times=20, repeats=3))) / 20
    return max(1, round(moving / computing))


def _teams_picture(result: Mapping[str, Any]) -> str:
    rows = {row["name"]: row for row in result["rows"]}
    turn, fused, bound, _ = rows.values()
    made = [
        _bar("two teams at once", median(turn["samples"]), "a"),
        _bar("both fused", median(fused["baseline"])),
        _bar("one after the other", median(turn["baseline"])),
    ]
    what = "a step; the mark is the longer of computing and moving"
    return picture([milliseconds(made, "A step of two networks", what, median(bound["baseline"]))])


def _bar(name: str, seconds: float, style: str = "other") -> BarRow:
    return BarRow(name, seconds, f"{1e3 * seconds:.0f} ms", style)


# --- workers that fall out of step ---------------------------------------------------------------


@dataclass(frozen=True)
class Effort:
    """How much is measured: ``gradients`` of both workers together, each time from the same weights.

    Attributes:
        size: pixels of an image's side.
    """

    rounds: int = 3
    gradients: int = 48
    size: int = 64
    pauses: tuple[str, ...] = tuple(PAUSES)


def measure_stale(effort: Effort = Effort()) -> Result:
    """Rows: seconds a gradient by each mode, over the synchronous ones and over the parameter server."""
    seconds, losses, stale = samples(effort)
    rows: list[Compared] = []
    for pauses in effort.pauses:
        for mode in list(MODES)[1:]:
            own = seconds[pauses, mode]
            base = seconds[pauses, "allreduce"]
            bar = _STALE_BARS.get((pauses, mode))
            rows.append(
                compare(f"{PAUSES[pauses]}: {MODES[mode]} over synchronous", own, base, bar)
            )
        best = "none" if pauses == "always" else "4"
        own, base = seconds[pauses, best], seconds[pauses, "ps"]
        name = f"{PAUSES[pauses]}: {MODES[best]} over parameter server"
        rows.append(compare(name, own, base, 1.0))
    notes = {f"loss, {PAUSES[p]}, {MODES[m]}": f"{median(v):.3g}" for (p, m), v in losses.items()}
    for (pauses, mode), counts in stale.items():
        whole = sum(counts.values()) or 1
        words = ", ".join(f"{n}: {100 * c / whole:.0f} %" for n, c in sorted(counts.items())[:8])
        notes[f"steps missing, {PAUSES[pauses]}, {MODES[mode]}"] = words
    return Result(
        "stale",
        "seconds a gradient of HEP-CNN, 2 workers with a core each; a pause is as long as computing a gradient",
        "synchronous steps by all-reduce; TensorFlow's parameter server",
        tuple(rows),
        {"rounds": str(effort.rounds), "gradients": str(effort.gradients), **notes},
    )


Samples = dict[tuple[str, str], list[float]]


def samples(effort: Effort) -> tuple[Samples, Samples, dict[tuple[str, str], Counter[int]]]:
    """Seconds a gradient, and the loss after all of them, by pauses and mode; and how many steps were missing.

    Raises:
        RuntimeError: workers exceeded the bound.
    """
    seconds, losses, stale = Samples(), Samples(), dict[tuple[str, str], Counter[int]]()
    cases = [(pauses, mode) for pauses in effort.pauses for mode in MODES]
    jobs = {name: partial(_job, name, effort.size) for name in ("stale", "ps")}
    with started(jobs) as sides:
        with sides["ps"].turn() as side:
            side.ask("ready")
        with sides["stale"].turn() as side:
            side.ask("step_s")
            pause = max(side.ask("step_s"))
        for number in range(effort.rounds):
            at = (3 * number) % len(cases)
            for pauses, mode in cases[at:] + cases[:at]:
                words = {"pauses": pauses, "seconds": pause, "gradients": effort.gradients}
                words |= {} if mode == "ps" else {"mode": mode}
                with sides["ps" if mode == "ps" else "stale"].turn() as side:
                    ranks = [each for each in side.ask("train", **words) if each]
                taken = max(each["seconds"] for each in ranks)
                seconds.setdefault((pauses, mode), []).append(taken / max(r["made"] for r in ranks))
                losses.setdefault((pauses, mode), []).append(ranks[0]["loss"])
                for each in ranks:
                    counts = {int(n): c for n, c in each.get("staleness", {}).items()}
                    if mode.isdecimal() and max(counts) > int(mode):
                        raise RuntimeError(f"bound {mode}, but {counts}")
                    stale.setdefault((pauses, mode), Counter()).update(counts)
    return seconds, losses, {key: counts for key, counts in stale.items() if counts}


def _job(name: str, size: int) -> Job:
    if name == "stale":
        return Job(image("tensorflow"), [_PROGRAM, name, str(size)])
    env = {"BENCH_PORTS": ",".join(map(str, free_ports(3)))}
    return Job(image("tensorflow"), [_PROGRAM, name, str(size)], 3, env)


def _stale_table(result: Mapping[str, Any]) -> str:
    """Gradients/s, loss, and what was missing: a row a mode, for each kind of pause."""
    rows = {row["name"]: row for row in result["rows"]}
    notes = result["versions"]
    lines = ["| | | gradients/s | over synchronous | loss | steps that were missing |"]
    lines.append("| --- | --- | ---: | --- | --- | --- |")
    for pauses in PAUSES.values():
        for mode in MODES.values():
            row = rows.get(f"{pauses}: {mode} over synchronous")
            first = rows.get(f"{pauses}: bound 0 over synchronous")
            if first is None:
                continue
            own = median(row["samples"] if row else first["baseline"])
            gain = f"{1 / row['value']:.2f} [{1 / row['high']:.2f}, {1 / row['low']:.2f}]" if row else ""  # fmt: skip
            missing = notes.get(f"steps missing, {pauses}, {mode}", "")
            loss = notes.get(f"loss, {pauses}, {mode}", "")
            lines.append(f"| {pauses} | {mode} | {1 / own:.3g} | {gain} | {loss} | {missing} |")
    barred = [row for row in result["rows"] if row["bar"] is not None]
    words = [f"{r['name']}: {r['value']:.3g}, {'met' if r['met'] else 'missed'}" for r in barred]
    text = f"Bars, of seconds a gradient, at most 1: {'; '.join(words)}. {notes['gradients']} gradients, {notes['rounds']} rounds."
    return finished(lines, result, text)


def _stale_picture(result: Mapping[str, Any]) -> str:
    rows = {row["name"]: row for row in result["rows"]}
    figures = []
    for pauses in PAUSES.values():
        first = rows.get(f"{pauses}: bound 0 over synchronous")
        if first is None:
            continue
        rates = {"synchronous": 1 / median(first["baseline"])}
        for mode in list(MODES.values())[1:]:
            rates[mode] = 1 / median(rows[f"{pauses}: {mode} over synchronous"]["samples"])
        made = [
            BarRow(name, rate, f"{rate:.3g}", "other" if name == "parameter server" else "a")
            for name, rate in rates.items()
        ]
        svg = bars(made, linear(0, 1.04 * max(rates.values()), "gradients/s"), pauses)
        figures.append(Figure(pauses.capitalize(), "gradients/s of both workers", svg))
    return picture(figures)


BENCHMARKS = (
    Benchmark("pipeline", 170, measure_pipeline, _pipeline_table, _pipeline_picture),
    Benchmark("pipeline-torch", 173, measure_torch, plain, _torch_picture),
    Benchmark("teams", 171, measure_teams, plain, _teams_picture),
    Benchmark("stale", 172, measure_stale, _stale_table, _stale_picture),
)
