"""Step times of training, 2 ranks: fairlead against no communication at all, and against its peers.

Every rank has one core and one thread. Without communication both ranks compute too, so that they share
caches, memory and clocks as they do with it. All libraries have the same networks (``programs/nets.py``),
batches and optimizer; they take turns, a few steps each, in rounds (``sides.py``).
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import plots
from benchmarks.measure import Compared, Result, compare
from benchmarks.sides import Side, Turn, free_ports, image

# Most that a step may take, over one without communication: an efficiency of 97, 97 and 92 %.
BARS = {"hep": 1 / 0.97, "cosmo": 1 / 0.97, "resnet": 1 / 0.92}
TITLES = {"hep": "HEP-CNN", "cosmo": "CosmoFlow", "resnet": "ResNet-50"}


@dataclass(frozen=True)
class Mode:
    """One way to train: what a row and a bar of the picture are named, and which side does it.

    Attributes:
        base: the mode without communication that it is compared with.
        alike: ranks hold the same weights afterwards, which is checked.
    """

    title: str
    side: str
    mode: str
    base: str = "none"
    alike: bool = True


MODES = {
    "none": Mode("no communication", "fairlead", "none", alike=False),
    "sync": Mode("fairlead", "fairlead", "sync"),
    "delayed": Mode("fairlead, delayed", "fairlead", "delayed"),
    "horovod": Mode("Horovod, default", "horovod", "sync"),
    "horovod-best": Mode("Horovod, grouped, cycle 50", "horovod-best", "sync"),
    "mwms": Mode("MultiWorkerMirrored, ring", "mwms", "sync"),
    "ps": Mode("parameter server", "ps", "sync", alike=False),
    "torch-none": Mode("torch, no communication", "torch", "none", "torch-none", alike=False),
    "gloo": Mode("torch DDP, Gloo", "torch", "gloo", "torch-none"),
    "torch-fairlead": Mode("torch DDP, fairlead", "torch", "fairlead", "torch-none"),
}
ENVIRONMENT: Mapping[str, Mapping[str, str]] = {"horovod-best": {"HOROVOD_CYCLE_TIME": "50"}}


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        size: ``full``, or ``tiny`` where only its working is of interest.
        steps: in a round, for each model.
    """

    models: tuple[str, ...] = ("hep", "cosmo", "resnet")
    modes: tuple[str, ...] = tuple(MODES)
    rounds: int = 6
    steps: int = 3
    size: str = "full"


def measure(effort: Effort = Effort()) -> Result:
    """Rows: each model and mode over the same without communication; the picture beside the JSON."""
    found = samples(effort)
    rows = rows_of(found)
    if effort.size == "full":
        plots.steps(rows, "step-efficiency")
    return Result(
        "step-efficiency",
        "a training step on 2 ranks, a core and a thread each: median of each round's steps",
        "the same step without communication, on both ranks at once",
        rows,
        {"rounds": str(effort.rounds), "steps a round": str(effort.steps)},
    )


def rows_of(found: Mapping[tuple[str, str], Sequence[float]]) -> tuple[Compared, ...]:
    """Each model's modes but those without communication."""
    rows = []
    for (model, mode), seconds in found.items():
        base = MODES[mode].base
        if mode != base:
            bar = BARS[model] if mode == "sync" else None
            name = f"{TITLES[model]}: {MODES[mode].title}"
            rows.append(compare(name, seconds, found[model, base], bar))
    return tuple(rows)


def samples(effort: Effort) -> dict[tuple[str, str], list[float]]:
    """Seconds of a step by model and mode, one a round.

    Raises:
        RuntimeError: a side failed, or its ranks do not hold the same weights afterwards.
    """
    found: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-")))
        folder.chmod(0o755)
        names = dict.fromkeys(MODES[mode].side for mode in effort.modes)
        sides = {name: stack.enter_context(start(name, effort.size, folder)) for name in names}
        for side in sides.values():
            side.ready()
        for side in sides.values():
            side.pause()
        for model in effort.models:
            turns(sides, model, effort, found)
    return found


def start(name: str, size: str, folder: Path) -> Side:
    """A side of that name, in its image."""
    if name == "torch":
        return Side(name, image("pytorch"), ["torch_steps.py", size], folder)
    env, ranks = dict(ENVIRONMENT.get(name, {})), 2
    if name in ("mwms", "ps"):
        ranks = 3 if name == "ps" else 2
        env["BENCH_PORTS"] = ",".join(map(str, free_ports(ranks)))
    # TensorFlow's coordination service ends workers that give no sign of life for ten seconds.
    return Side(
        name, image("tensorflow-horovod"), ["tf_steps.py", size, name], folder, ranks=ranks, env=env,
        stops=name != "mwms",
    )  # fmt: skip


def turns(
    sides: Mapping[str, Side],
    model: str,
    effort: Effort,
    found: dict[tuple[str, str], list[float]],
    modes: Mapping[str, Mode] = MODES,
) -> None:
    """A warm-up and all rounds of a model, then whether ranks ended alike."""
    keys = list(effort.modes)
    print(f"  {TITLES[model]}: {len(keys)} modes, {effort.rounds} rounds", flush=True)
    for key in keys:
        with Turn(sides[modes[key].side]) as side:
            side.ask("warm", model=model, mode=modes[key].mode)
    for number in range(effort.rounds):
        at = number % len(keys)
        for key in keys[at:] + keys[:at]:
            mode = modes[key]
            with Turn(sides[mode.side]) as side:
                ranks = side.ask("steps", model=model, mode=mode.mode, count=effort.steps)
            # A parameter server takes no steps of its own.
            seconds = [one for rank in ranks[:2] for one in rank]
            found.setdefault((model, key), []).append(statistics.median(seconds))
    for key in keys:
        with Turn(sides[modes[key].side]) as side:
            digests = side.ask("digest", model=model, mode=modes[key].mode)
        if modes[key].alike and len(set(digests)) != 1:
            raise RuntimeError(f"{modes[key].title}: ranks hold other weights after {model}")
    for side in sides.values():
        with Turn(side):
            side.ask("drop", model=model)
