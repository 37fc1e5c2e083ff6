"""Step times of training, 2 ranks: fairlead against no communication at all, and against other libraries.

Every rank has one core and one thread. Without communication both ranks compute too, so that they share caches, memory
and clocks as they do with it. All libraries have the same networks (:mod:`benchmarks.peers.nets`), batches and
optimizer; they take turns, step by step, each next to one without communication.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.pictures import efficiencies
from benchmarks.result import Benchmark, Compared, Result, compare
from benchmarks.sides import Job, Side, free_ports, image, started
from benchmarks.tables import efficiency, finished
from fairlead.perf.draw.svg_file import picture

# The most that a step may take, over one without communication: the inverse of an efficiency, by mode and model.
_OURS = {"hep": 1 / 0.99, "cosmo": 1 / 0.99, "resnet": 1 / 0.97}
BARS = {"sync": _OURS, "delayed": _OURS, "torch-fairlead": {"resnet": 1 / 0.95}}
TITLES = {"hep": "HEP-CNN", "cosmo": "CosmoFlow", "resnet": "ResNet-50"}


@dataclass(frozen=True)
class Mode:
    """One way to train.

    Attributes:
        title: of its row, and of its bar in the picture.
        side: which of the running jobs trains so; ``mode`` is what that job calls it.
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
    "optimizer": Mode("torch optimizer, fairlead", "torch", "optimizer", "torch-none"),
}
ENVIRONMENT: Mapping[str, Mapping[str, str]] = {"horovod-best": {"HOROVOD_CYCLE_TIME": "50"}}


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        size: ``full``, or ``tiny`` to see whether it works.
        rounds: in each, every mode takes a step next to one of its base.
        ours: pairs of steps a round for modes that have a bar.
    """

    models: tuple[str, ...] = ("hep", "cosmo", "resnet")
    modes: tuple[str, ...] = tuple(MODES)
    rounds: int = 4
    ours: int = 7
    size: str = "full"


# Seconds of a step without communication, and of one with it right before or after.
Pair = tuple[float, float]


def measure(effort: Effort = Effort()) -> Result:
    """Rows: each model and mode over the same without communication."""
    return Result(
        "step-efficiency",
        "a training step on 2 ranks, a core and a thread each: the slower rank's time",
        "the same step without communication, on both ranks at once, begun together: the slower rank's",
        rows_of(samples(effort)),
        {"rounds": str(effort.rounds), "steps a round with a bar": str(effort.ours)},
    )


def rows_of(pairs: Mapping[tuple[str, str], Sequence[Pair]]) -> tuple[Compared, ...]:
    """Each model's modes, over the steps next to theirs."""
    rows = []
    for (model, mode), own_pairs in pairs.items():
        base, own = zip(*own_pairs, strict=True)
        bar = BARS.get(mode, {}).get(model)
        rows.append(compare(f"{TITLES[model]}: {MODES[mode].title}", own, base, bar, kind="pairs"))
    return tuple(rows)


def samples(effort: Effort) -> dict[tuple[str, str], list[Pair]]:
    """Pairs of steps by model and mode.

    Raises:
        RuntimeError: a side failed, or its ranks do not hold the same weights afterwards.
    """
    pairs: dict[tuple[str, str], list[Pair]] = {}
    names = dict.fromkeys(MODES[mode].side for mode in effort.modes)
    with started({name: partial(_job, name, effort.size) for name in names}) as sides:
        for model in effort.models:
            print(
                f"  {TITLES[model]}: {len(effort.modes)} modes, {effort.rounds} rounds", flush=True
            )
            with trained(sides, model, effort.modes, MODES):
                for key, pair in _pairs(sides, model, effort):
                    pairs.setdefault((model, key), []).append(pair)
    return pairs


def _pairs(sides: Mapping[str, Side], model: str, effort: Effort) -> Iterator[tuple[str, Pair]]:
    keys = [key for key in effort.modes if MODES[key].base != key]
    for number in range(effort.rounds):
        at = number % len(keys)
        for key in keys[at:] + keys[:at]:
            base, own = MODES[MODES[key].base], MODES[key]
            for turn in range(effort.ours if key in BARS else 1):
                # Every second pair the other way round.
                order = (own, base) if (number + turn) % 2 else (base, own)
                seconds = {mode: step(sides, model, mode) for mode in order}
                yield key, (seconds[base], seconds[own])


def step(sides: Mapping[str, Side], model: str, mode: Mode, count: int = 1) -> float:
    """Seconds of a step that both ranks begin together: the slower one's, the median of ``count``.

    Of two ranks that wait for each other each pays for what delays the other on a busy machine; without
    communication the slower one does.
    """
    with sides[mode.side].turn() as side:
        # A parameter server takes no steps of its own.
        each: list[list[float]] = [
            side.ask("step", model=model, mode=mode.mode)[:2] for _ in range(count)
        ]
    return statistics.median(max(ranks) for ranks in each)


@contextmanager
def trained(
    sides: Mapping[str, Side], model: str, keys: Sequence[str], modes: Mapping[str, Mode]
) -> Iterator[None]:
    """A network for each mode, warm; afterwards checks that all ranks hold the same weights."""
    for key in keys:
        with sides[modes[key].side].turn() as side:
            side.ask("warm", model=model, mode=modes[key].mode)
    yield
    for key in keys:
        with sides[modes[key].side].turn() as side:
            digests = side.ask("digest", model=model, mode=modes[key].mode)
        if modes[key].alike and len(set(digests)) != 1:
            raise RuntimeError(f"{modes[key].title}: ranks hold other weights after {model}")
    for side in sides.values():
        with side.turn():
            side.ask("drop", model=model)


def _job(name: str, size: str) -> Job:
    """A side of that name, in its image."""
    words = ["train_steps.py", size, name]
    if name == "torch":
        return Job(image("pytorch"), words)
    env, ranks = dict(ENVIRONMENT.get(name, {})), 3 if name == "ps" else 2
    if name in ("mwms", "ps"):
        env["BENCH_PORTS"] = ",".join(map(str, free_ports(ranks)))
    # TensorFlow's coordination service ends workers that give no sign of life for ten seconds.
    return Job(image("tensorflow-horovod"), words, ranks, env, stops=name != "mwms")


def _panels(result: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        rows.setdefault(row["name"].split(": ")[0], []).append(row)
    return rows


def _table(result: Mapping[str, Any]) -> str:
    """Efficiencies in percent, a column a model."""
    rows = {tuple(row["name"].split(": ")): row for row in result["rows"]}
    titles = sorted(dict.fromkeys(title for _, title in rows), key=lambda t: not t.startswith("fairlead"))  # fmt: skip
    models = list(_panels(result))
    lines = ["| | " + " | ".join(models) + " |", "| --- |" + " --- |" * len(models)]
    for title in titles:
        cells = [efficiency(rows[m, title]) if (m, title) in rows else "" for m in models]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return finished(lines, result)


def _picture(result: Mapping[str, Any]) -> str:
    return picture([efficiencies(rows, model) for model, rows in _panels(result).items()])


BENCHMARKS = (Benchmark("step-efficiency", 90, measure, _table, _picture),)
