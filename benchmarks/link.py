"""Training over a network that is as slow as a step: 2 ranks on two hosts, a cable of limited rate between.

The hosts are namespaces of this machine (``tests/system/netns.py``); both ends of the cable have a token bucket
filter. Delayed gradients should cost no more than computing or communicating, whichever takes longer. Needs root.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tests.system.netns import CABLE, Host, launcher, two_hosts

from benchmarks import plots, steps
from benchmarks.measure import Compared, Result, compare
from benchmarks.sides import Side, image
from benchmarks.steps import ENVIRONMENT, TITLES
from fairlead.doctor.install.host_mpi import install_wheel_mpi
from fairlead.perf.bench.nets import TASKS

# Bits a second of the cable, and samples a rank, for each model.
RATES = {"hep": 200e6, "cosmo": 0.37e9, "resnet": 2e9}
WEIGHTS = {key: task.weights for key, task in TASKS.items()}
MODES = ("none", "only", "sync", "delayed", "horovod", "horovod-best")
_DELAYED, _FASTER, _SYNC = 1.10, 1 / 1.5, 1.0


@dataclass(frozen=True)
class Effort:
    models: tuple[str, ...] = ("cosmo", "resnet")
    rounds: int = 5
    steps: int = 2
    size: str = "full"


def measure(effort: Effort = Effort()) -> Result:
    """Rows: delayed over the longer of both; delayed and synchronous over Horovod's best."""
    if os.geteuid() != 0:
        raise RuntimeError("two hosts on one machine need root: they are namespaces")
    rows: list[Compared] = []
    groups: dict[str, Mapping[str, float]] = {}
    lines = {}
    for model, found in samples(effort).items():
        own = rows_of(model, found)
        rows += own
        title = f"{TITLES[model]}, {RATES[model] / 1e9:g} Gbit/s"
        groups[title] = {
            "fairlead, delayed": statistics.median(found["delayed"]),
            "fairlead": statistics.median(found["sync"]),
            "Horovod, grouped, cycle 50": statistics.median(found["horovod-best"]),
            "Horovod, default": statistics.median(found["horovod"]),
        }
        lines[title] = statistics.median(map(max, found["none"], found["only"]))
    if effort.size == "full":
        plots.bars(groups, "comm-link", "step, ms; dashed: the longer of computing, moving", lines)
    return Result(
        "comm-link",
        "a training step on 2 ranks, each on a host of its own, joined by a cable of limited rate",
        "the longer of the same step without communication and of its communication alone; Horovod's best",
        tuple(rows),
        {"rounds": str(effort.rounds), "steps a round": str(effort.steps)},
    )


def rows_of(model: str, found: Mapping[str, list[float]]) -> list[Compared]:
    """The three bars of a model, and what is only reported."""
    title = f"{TITLES[model]}, {RATES[model] / 1e9:g} Gbit/s"
    best = min(("horovod", "horovod-best"), key=lambda name: statistics.median(found[name]))
    bound = [max(pair) for pair in zip(found["none"], found["only"], strict=True)]
    named = steps.MODES[best].title
    return [
        compare(f"{title}: delayed over max(compute, communication)", found["delayed"], bound, _DELAYED),
        compare(f"{title}: delayed over {named}", found["delayed"], found[best], _FASTER),
        compare(f"{title}: synchronous over {named}", found["sync"], found[best], _SYNC),
        compare(f"{title}: communication alone over no communication", found["only"], found["none"], None),
    ]  # fmt: skip


def samples(effort: Effort) -> dict[str, dict[str, list[float]]]:
    """Seconds of a step by model and mode, one a round."""
    result: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-")))
        folder.chmod(0o755)
        pair = stack.enter_context(two_hosts())
        only = replace(steps.MODES["sync"], title="communication alone", mode="only")
        modes = {key: only if key == "only" else steps.MODES[key] for key in MODES}
        names = dict.fromkeys(steps.MODES.get(m, steps.MODES["sync"]).side for m in MODES)
        sides = {
            name: stack.enter_context(start(name, effort.size, folder, pair[0])) for name in names
        }
        for side in sides.values():
            side.ready()
        for side in sides.values():
            side.pause()
        for model in effort.models:
            for host in pair:
                limit(host, RATES[model])
            print(f"  {TITLES[model]}: {len(MODES)} modes, {effort.rounds} rounds", flush=True)
            found: dict[str, list[float]] = {key: [] for key in MODES}
            with steps.trained(sides, model, MODES, modes):
                for number in range(effort.rounds):
                    at = number % len(MODES)
                    for key in MODES[at:] + MODES[:at]:
                        seconds = steps.step(sides, model, modes[key], effort.steps)
                        found[key].append(seconds)
            result[model] = found
    return result


def start(name: str, size: str, folder: Path, first: Host, words: Sequence[str] = ()) -> Side:
    """A side with a rank on each host; ``words`` for another program than the training one."""
    mpich = install_wheel_mpi("mpich", "5.0.2")
    env = {"UCX_TLS": "self,tcp", **ENVIRONMENT.get(name, {})}
    run = ("--mpi", str(mpich), "--launcher", str(launcher(first, mpich / "bin/mpiexec.hydra")))
    return Side(
        name, image("tensorflow-horovod"), words or ["tf_steps.py", size, name], folder, env=env, run=run,
        before=first.words(),
    )  # fmt: skip


def limit(host: Host, rate: float) -> None:
    """Bits a second that leave a host."""
    words = f"tc qdisc replace dev {CABLE} root tbf rate {rate:.0f}bit burst 256kb latency 200ms"
    # The network's namespace alone, as the tests do.
    enter = ("nsenter", "--target", str(host.init), "--net", "--")
    subprocess.run([*enter, *words.split()], check=True)
