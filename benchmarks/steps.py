"""Step times of training, 2 ranks: fairlead against no communication at all, and against its peers.

Every rank has one core and one thread. Without communication both ranks compute too, so that they share
caches, memory and clocks as they do with it. All libraries have the same networks (:mod:`fairlead.perf.bench.nets`),
batches and optimizer; they take turns, step by step, each beside one without communication (``sides.py``).
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
        rounds: of each, every mode takes a step beside one of its base.
        ours: pairs of steps a round for what has a bar.
    """

    models: tuple[str, ...] = ("hep", "cosmo", "resnet")
    modes: tuple[str, ...] = tuple(MODES)
    rounds: int = 4
    ours: int = 7
    size: str = "full"


# Seconds of a step without communication, and of one with it right before or after.
Pair = tuple[float, float]


def measure(effort: Effort = Effort()) -> Result:
    """Rows: each model and mode over the same without communication; the picture beside the JSON."""
    found = samples(effort)
    rows = rows_of(found)
    if effort.size == "full":
        plots.steps(rows, "step-efficiency")
    return Result(
        "step-efficiency",
        "a training step on 2 ranks, a core and a thread each: the slower rank's time",
        "the same step without communication, on both ranks at once, begun together: the slower rank's",
        rows,
        {"rounds": str(effort.rounds), "steps a round with a bar": str(effort.ours)},
    )


def rows_of(found: Mapping[tuple[str, str], Sequence[Pair]]) -> tuple[Compared, ...]:
    """Each model's modes, over the steps beside theirs."""
    rows = []
    for (model, mode), pairs in found.items():
        base, own = zip(*pairs, strict=True)
        bar = BARS[model] if mode == "sync" else None
        rows.append(compare(f"{TITLES[model]}: {MODES[mode].title}", own, base, bar, kind="pairs"))
    return tuple(rows)


def samples(effort: Effort) -> dict[tuple[str, str], list[Pair]]:
    """Pairs of steps by model and mode.

    Raises:
        RuntimeError: a side failed, or its ranks do not hold the same weights afterwards.
    """
    found: dict[tuple[str, str], list[Pair]] = {}
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
            print(
                f"  {TITLES[model]}: {len(effort.modes)} modes, {effort.rounds} rounds", flush=True
            )
            with trained(sides, model, effort.modes, MODES):
                for key, pair in _pairs(sides, model, effort):
                    found.setdefault((model, key), []).append(pair)
    return found


def _pairs(sides: Mapping[str, Side], model: str, effort: Effort) -> Iterator[tuple[str, Pair]]:
    keys = [key for key in effort.modes if MODES[key].base != key]
    for number in range(effort.rounds):
        at = number % len(keys)
        for key in keys[at:] + keys[:at]:
            base, own = MODES[MODES[key].base], MODES[key]
            for turn in range(effort.ours if key == "sync" else 1):
                if (number + turn) % 2:
                    after = step(sides, model, own)
                    yield key, (step(sides, model, base), after)
                else:
                    before = step(sides, model, base)
                    yield key, (before, step(sides, model, own))


def step(sides: Mapping[str, Side], model: str, mode: Mode, count: int = 1) -> float:
    """Seconds of a step that both ranks begin together: the slower one's, the median of ``count``.

    Of two ranks that wait for each other each pays for what delays the other on a busy machine; without
    communication the slower one does.
    """
    with Turn(sides[mode.side]) as side:
        # A parameter server takes no steps of its own.
        each = [side.ask("step", model=model, mode=mode.mode)[:2] for _ in range(count)]
    return statistics.median(max(ranks) for ranks in each)


@contextmanager
def trained(
    sides: Mapping[str, Side], model: str, keys: Sequence[str], modes: Mapping[str, Mode]
) -> Iterator[None]:
    """A network for each mode, warm; afterwards looks whether the ranks have ended alike."""
    for key in keys:
        with Turn(sides[modes[key].side]) as side:
            side.ask("warm", model=model, mode=modes[key].mode)
    yield
    for key in keys:
        with Turn(sides[modes[key].side]) as side:
            digests = side.ask("digest", model=model, mode=modes[key].mode)
        if modes[key].alike and len(set(digests)) != 1:
            raise RuntimeError(f"{modes[key].title}: ranks hold other weights after {model}")
    for side in sides.values():
        with Turn(side):
            side.ask("drop", model=model)


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
