"""Training over a network that is as slow as a step: 2 ranks on two hosts, a cable of limited rate between.

The hosts are namespaces of this machine (``tests/system/netns.py``); both ends of the cable have a token bucket filter.
Delayed gradients should cost no more than computing or communicating, whichever takes longer. Needs root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from tests.system.netns import CABLE, Host, launcher, two_hosts

from benchmarks.bars import step_efficiency as steps
from benchmarks.bars.step_efficiency import ENVIRONMENT, TITLES
from benchmarks.peers.nets import TASKS
from benchmarks.pictures import milliseconds
from benchmarks.result import Benchmark, Compared, Result, compare
from benchmarks.sides import Job, image, started
from benchmarks.tables import plain
from fairlead.doctor.install.host_mpi import install_wheel_mpi
from fairlead.perf.draw.charts import BarRow
from fairlead.perf.draw.svg_file import picture

# Bits a second of the cable, and trainable weights, of each model.
RATES = {"hep": 200e6, "cosmo": 0.37e9, "resnet": 2e9}
WEIGHTS = {key: task.weights for key, task in TASKS.items()}
OTHERS = {
    "only": replace(steps.MODES["sync"], title="communication alone", mode="only"),
    "in-step": replace(
        steps.MODES["optimizer"], title="torch optimizer, in its step", mode="in-step"
    ),
}
TORCH_ROWS = (
    "optimizer over DDP, Gloo",
    "optimizer over the same in its step",
    "DDP over DDP, Gloo",
    "optimizer over no communication",
)
TORCH = ("torch-none", "gloo", "torch-fairlead", "optimizer", "in-step")
MODES = ("none", "only", "sync", "delayed", "horovod", "horovod-best")
_DELAYED, _FASTER, _SYNC, _TORCH = 1.10, 1 / 1.5, 1.0, 1.05


@dataclass(frozen=True)
class Effort:
    """How much is measured; ``size`` as of :class:`benchmarks.bars.step_efficiency.Effort`."""

    models: tuple[str, ...] = ("cosmo", "resnet")
    rounds: int = 5
    steps: int = 2
    size: str = "full"
    modes: tuple[str, ...] = MODES


def measure(effort: Effort = Effort()) -> Result:
    """Rows: delayed over the longer of both; delayed and synchronous over Horovod's best."""
    if os.geteuid() != 0:
        raise RuntimeError("two hosts on one machine need root: they are namespaces")
    rows = [row for model, seconds in samples(effort).items() for row in rows_of(model, seconds)]
    return Result(
        "comm-link",
        "a training step on 2 ranks, each on a host of its own, joined by a cable of limited rate",
        "the longer of the same step without communication and of its communication alone; Horovod's best",
        tuple(rows),
        {"rounds": str(effort.rounds), "steps a round": str(effort.steps)},
    )


def measure_torch(effort: Effort = Effort(modes=TORCH, steps=1)) -> Result:
    """Rows: gradients that leave during the backward pass, over those of DDP on Gloo, and over what leaves in the step."""
    rows = [
        row for model, seconds in samples(effort).items() for row in torch_rows_of(model, seconds)
    ]
    return Result(
        "comm-link-torch",
        "a training step of torch on 2 ranks, each on a host of its own, joined by a cable of limited rate",
        "torch's DistributedDataParallel on Gloo; the same optimizer with gradients that leave in its step",
        tuple(rows),
        {"rounds": str(effort.rounds)},
    )


def title_of(model: str) -> str:
    """E.g. ``CosmoFlow, 0.37 Gbit/s``."""
    return f"{TITLES[model]}, {RATES[model] / 1e9:g} Gbit/s"


def rows_of(model: str, seconds: Mapping[str, list[float]]) -> list[Compared]:
    """The three bars of a model, and what is only reported."""
    title = title_of(model)
    best = min(("horovod", "horovod-best"), key=lambda name: median(seconds[name]))
    bound = [max(pair) for pair in zip(seconds["none"], seconds["only"], strict=True)]
    named = steps.MODES[best].title
    return [
        compare(f"{title}: delayed over max(compute, communication)", seconds["delayed"], bound, _DELAYED),
        compare(f"{title}: delayed over {named}", seconds["delayed"], seconds[best], _FASTER),
        compare(f"{title}: synchronous over {named}", seconds["sync"], seconds[best], _SYNC),
        compare(f"{title}: communication alone over no communication", seconds["only"], seconds["none"], None),
    ]  # fmt: skip


def torch_rows_of(model: str, seconds: Mapping[str, list[float]]) -> list[Compared]:
    """The bar of a model on torch, and what is only reported."""
    own, gloo = seconds["optimizer"], seconds["gloo"]
    pairs = [
        (own, gloo, _TORCH),
        (own, seconds["in-step"], _SYNC),
        (seconds["torch-fairlead"], gloo, None),
        (own, seconds["torch-none"], None),
    ]
    return [
        compare(f"{title_of(model)}: {name}", *pair)
        for name, pair in zip(TORCH_ROWS, pairs, strict=True)
    ]


def samples(effort: Effort) -> dict[str, dict[str, list[float]]]:
    """Seconds of a step by model and mode, one a round."""
    result: dict[str, dict[str, list[float]]] = {}
    modes = {key: OTHERS.get(key) or steps.MODES[key] for key in effort.modes}
    names = dict.fromkeys(mode.side for mode in modes.values())
    with two_hosts() as pair:
        words = {name: ("train_steps.py", effort.size, name) for name in names}
        jobs = {name: partial(job, name, pair[0], words[name]) for name in names}
        with started(jobs) as sides:
            for model in effort.models:
                for host in pair:
                    limit(host, RATES[model])
                print(f"  {TITLES[model]}: {len(modes)} modes, {effort.rounds} rounds", flush=True)
                seconds: dict[str, list[float]] = {key: [] for key in modes}
                with steps.trained(sides, model, effort.modes, modes):
                    for number in range(effort.rounds):
                        at = number % len(modes)
                        for key in effort.modes[at:] + effort.modes[:at]:
                            seconds[key].append(steps.step(sides, model, modes[key], effort.steps))
                result[model] = seconds
    return result


def job(name: str, first: Host, words: Sequence[str]) -> Job:
    """A side with a rank on each host."""
    mpich = install_wheel_mpi("mpich", "5.0.2")
    env = {"UCX_TLS": "self,tcp", **ENVIRONMENT.get(name, {})}
    run = ("--mpi", str(mpich), "--launcher", str(launcher(first, mpich / "bin/mpiexec.hydra")))
    of = image("pytorch" if name == "torch" else "tensorflow-horovod")
    return Job(of, words, env=env, run=run, before=first.words())


def limit(host: Host, rate: float) -> None:
    """Bits a second that leave a host."""
    words = f"tc qdisc replace dev {CABLE} root tbf rate {rate:.0f}bit burst 256kb latency 200ms"
    # Enters the network namespace alone, as the tests do.
    enter = ("nsenter", "--target", str(host.init), "--net", "--")
    subprocess.run([*enter, *words.split()], check=True)


def _picture(result: Mapping[str, Any]) -> str:
    """A panel a model: its steps, and the bound that cannot be beaten."""
    figures = []
    for title in dict.fromkeys(row["name"].split(": ")[0] for row in result["rows"]):
        rows, bound = [], 0.0
        for row in result["rows"]:
            model, words = row["name"].split(": ")
            if model != title or "over" not in words:
                continue
            own, other = median(row["samples"]), median(row["baseline"])
            if "max(" in words:
                bound = other
                rows.append(_step("fairlead, delayed", own))
            elif words.startswith("synchronous"):
                rows.append(_step("fairlead", own))
                rows.append(_step(words.partition(" over ")[2], other))
        what = "a step; the mark is the longer of computing and moving"
        figures.append(milliseconds(rows, title, what, bound))
    return picture(figures)


def _torch_picture(result: Mapping[str, Any]) -> str:
    """A panel a model: its steps, and one without communication."""
    rows = {tuple(row["name"].split(": ")): row for row in result["rows"]}
    figures = []
    for title in dict.fromkeys(title for title, _ in rows):
        gloo, plain_step = rows[title, TORCH_ROWS[0]], rows[title, TORCH_ROWS[1]]
        steps_of = [
            _step("fairlead, optimizer", median(gloo["samples"])),
            _step("fairlead, in its step", median(plain_step["baseline"])),
            _step("fairlead, DDP", median(rows[title, TORCH_ROWS[2]]["samples"])),
            _step("DDP, Gloo", median(gloo["baseline"])),
        ]
        alone = median(rows[title, TORCH_ROWS[3]]["baseline"])
        what = "a step; the mark is one without communication"
        figures.append(milliseconds(steps_of, title, what, alone))
    return picture(figures)


def _step(name: str, seconds: float) -> BarRow:
    style = "a" if "fairlead" in name else "other"
    return BarRow(name, seconds, f"{1e3 * seconds:.0f} ms", style)


BENCHMARKS = (
    Benchmark("comm-link", 120, measure, plain, _picture),
    Benchmark("comm-link-torch", 121, measure_torch, plain, _torch_picture),
)
