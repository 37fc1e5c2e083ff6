"""What searches for HEP-CNN's parameters cost until they reach an AUC: TPE with ASHA, and a population, against chance.

The searches are those of ``fairlead tune``, its samplers, pruners, spaces and trainings; trials run one after the other in
a process that stays, and their cost is the number of samples that they train on: that does not depend on the machine.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.result import FAIRLEAD, PACKAGE, Benchmark, Result, compare
from fairlead.base.paths import cache_dir
from fairlead.ml import registry
from fairlead.ml.train.host import data_key
from fairlead.ml.train.model import TrainOptions
from fairlead.tune.evolution import Evolution
from fairlead.tune.models import Model, space_of
from fairlead.tune.study import Search, Study
from fairlead.tune.target import TrialOf
from fairlead.tune.workers import Worker

SEEDS, BAR = (1, 2, 3, 4, 5), 1 / 3
_EVENTS, _HELD_OUT = 1000, 1000
_RANDOM, _TPE, _FIXED, _MEMBERS, _GENERATIONS = 16, 24, 8, 4, 4
_PROGRAM = PACKAGE / "programs/tune_server.py"
_LIMIT_S = 600.0
# The bundled space with fewer filters: a training of a second.
_SPACE = """
[parameters.rate]
low = 1e-4
high = 1e-2
log = true
[parameters.batch]
choices = [8, 16, 32]
[parameters.dropout]
low = 0.0
high = 0.5
[parameters.units]
low = 2
high = 4
[parameters.filters]
low = 8
high = 32
step = 8
length = "units"
[parameters.kernel]
choices = [3, 5]
[parameters.dense]
choices = [0, 64, 128]
[parameters.activation]
choices = ["relu", "elu", "gelu"]
[parameters.normalize]
choices = [false, true]
"""
# What may change while a network of one structure trains.
_RECIPE = """
[parameters.rate]
low = 1e-4
high = 1e-2
log = true
[parameters.dropout]
low = 0.0
high = 0.5
[parameters.l2]
low = 1e-6
high = 1e-2
log = true
[parameters.units]
low = 3
high = 3
[parameters.filters]
low = 16
high = 16
length = "units"
[parameters.dense]
choices = [64]
"""


@dataclass(frozen=True)
class Spent:
    """A trial: samples that it has trained on, and the AUC that it came to, 0 where it was ended early."""

    samples: int
    auc: float


class Server:
    """A process that trains, in a folder of its own."""

    def __init__(self, folder: Path):
        self.folder, self._count = folder, 0

    def train(self, study: Study, number: int, model: Model, folder: Path, config: Path) -> Spent:
        """Trains one configuration; it is ended early where the study says so."""
        self._count += 1
        stem = f"{self._count:05}"
        ask = self.folder / f"{stem}.part"
        ask.write_text(str(config))
        ask.rename(self.folder / f"{stem}.ask")
        ended, until = False, time.monotonic() + _LIMIT_S
        while not any(
            (self.folder / f"{stem}.{how}").exists() for how in ("done", "ended", "failed")
        ):
            if time.monotonic() > until:
                raise RuntimeError(f"no end of {config}")
            for step, values in model.reports(folder):
                if study.report(number, step, values[""]) and not ended:
                    os.kill(int((self.folder / "server.pid").read_text()), signal.SIGTERM)
                    ended = True
            time.sleep(0.005)
        model.reports(folder)
        steps = [e for e in _events(folder) if e["event"] == "step"]
        begin = next(e["begin"] for e in _events(folder) if e["event"] == "start")
        asked = json.loads(config.read_bytes())
        samples = (steps[-1]["step"] - begin if steps else 0) * asked["batch"]
        result = folder / "train.result.json"
        if not (self.folder / f"{stem}.done").exists() or not result.exists():
            return Spent(samples, 0.0)
        return Spent(samples, json.loads(result.read_bytes())["evaluation"]["scores"]["auc"])


def _events(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "train.events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@contextmanager
def _served(folder: Path) -> Iterator[Server]:
    folder.mkdir(parents=True)
    words = [
        *FAIRLEAD, "run", "-q", "-n", "1", "-B", str(folder.parent), "-B", str(PACKAGE), "-B", str(cache_dir() / "data"),
        "tensorflow", "--", "python3", str(_PROGRAM), str(folder),
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            while not (folder / "server.pid").exists():
                if server.poll() is not None:
                    raise RuntimeError((folder / "log").read_text())
                time.sleep(0.1)
            yield Server(folder)
            (folder / "stop").touch()
            server.wait(60)
        finally:
            server.terminate()
            server.wait(30)


def _search(server: Server, folder: Path, search: Search, space: str) -> list[Spent]:
    """The trials of a search, in order."""
    folder.mkdir(parents=True)
    (folder / "space.toml").write_text(space)
    task = registry.find("hepcnn")
    options = TrainOptions(
        run_dir=folder, model="hepcnn", ranks=1, train_samples=_EVENTS, val_samples=_HELD_OUT, max_seconds=math.inf,
        forward_apart=False, epochs=1,
    )  # fmt: skip
    how = search.evolution
    data, pbt = cache_dir() / "data" / data_key(options), search.sampler == "pbt"
    if how.generations:  # a whole training is as long in one piece as in parts
        times = how.generations
        options = replace(options, parts=times) if pbt else replace(options, epochs=times)
    model = Model(
        task, space_of(task, folder / "space.toml"), options, data, {}, inherits=pbt,
        generation=how.population if pbt else 0,
    )  # fmt: skip
    study, spent = Study(folder, model.space, search, Worker(folder / "workers")), []
    while claim := study.claim():
        own = folder / "trials" / f"{claim.number:05}"
        own.mkdir(parents=True)
        source = None if claim.source is None else folder / "trials" / f"{claim.source:05}"
        work = model.work(TrialOf(claim.number, claim.seed, own, source), claim.parameters)
        trial = server.train(study, claim.number, model, own, Path(work.command[-1]))
        spent.append(trial)
        study.tell(claim.number, [trial.auc] if trial.auc else None, pruned=not trial.auc)
        if study.inherits:
            study.discard(lambda n: model.discard(folder / "trials" / f"{n:05}"))
    return spent


def _generated(folder: Path) -> None:
    """The samples, generated by a training of the same size."""
    words = [
        *FAIRLEAD, "run", "-q", "-n", "1", "-B", str(cache_dir()), "tensorflow", "--", "python3", "-m",
        "fairlead.ml.data.generate",
    ]  # fmt: skip
    options = TrainOptions(run_dir=folder, train_samples=_EVENTS, val_samples=_HELD_OUT)
    out = cache_dir() / "data" / data_key(options)
    out.mkdir(parents=True, exist_ok=True)
    task = options.task
    more = (
        "--out", out, "--train", _EVENTS, "--val", _HELD_OUT, "--set", task.data.name, "--size", task.size, "--format",
        "hdf5", "--seed", options.seed, "--processes", 2, "--events-file", folder / "generate.jsonl",
    )  # fmt: skip
    subprocess.run([*words, *map(str, more)], check=True)


def _of_seed(folder: Path, server: Server, seed: int) -> dict[str, list[Spent]]:
    own = folder / f"seed{seed}"
    pbt = Evolution(
        population=_MEMBERS, generations=_GENERATIONS, fixed=("units", "filters", "dense")
    )
    return {
        "tpe": _search(server, own / "tpe", Search("tpe", "asha", _TPE, seed), _SPACE),
        "random": _search(server, own / "random", Search("random", "none", _RANDOM, seed), _SPACE),
        "pbt": _search(
            server, own / "pbt", Search("pbt", "none", _MEMBERS * _GENERATIONS, seed, evolution=pbt), _RECIPE
        ),
        "fixed": _search(
            server, own / "fixed",
            Search("random", "none", _FIXED, seed, evolution=Evolution(generations=_GENERATIONS)), _RECIPE,
        ),
    }  # fmt: skip


def reached(trials: Sequence[Spent]) -> tuple[float, int]:
    """The best AUC of a search, and the samples until it came."""
    best = max(trial.auc for trial in trials)
    at = next(i for i, trial in enumerate(trials) if trial.auc == best)
    return best, sum(trial.samples for trial in trials[: at + 1])


def expected(pool: Sequence[Spent], auc: float) -> float:
    """The samples that chance needs for an AUC, on average: where no trial has reached it, at least as many as all had."""
    hits = max(sum(trial.auc >= auc for trial in pool), 1)
    return sum(trial.samples for trial in pool) / hits


def measure() -> Result:
    """The samples that each search needs for the best AUC that it has found, against those that chance needs for it."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        folder = Path(name)
        _generated(folder)
        count = len(os.sched_getaffinity(0))
        with ThreadPoolExecutor(count) as pool:

            def of(part: int) -> list[dict[str, list[Spent]]]:
                with _served(folder / f"server{part}") as server:
                    return [_of_seed(folder, server, seed) for seed in SEEDS[part::count]]

            found = [each for part in pool.map(of, range(count)) for each in part]
    rows = []
    for one, other, title in (
        ("tpe", "random", "samples to the AUC of TPE with ASHA, of those of random search"),
        ("pbt", "fixed", "samples to the AUC of a population, of those of fixed schedules"),
    ):
        chance = [trial for each in found for trial in each[other]]
        best = [reached(each[one]) for each in found]
        costs = [float(cost) for _, cost in best]
        needed = [expected(chance, auc) for auc, _ in best]
        rows.append(compare(title, costs, needed, BAR, kind="pairs", unit=""))
        for kind in (one, other):
            scores = [reached(each[kind])[0] for each in found]
            rows.append(
                compare(
                    f"best AUC of {kind}", scores, [1.0] * len(scores), None, kind="pairs", unit=""
                )
            )
        hits = [sum(trial.auc >= auc for trial in chance) for auc, _ in best]
        rows.append(
            compare(
                f"trials of {other}, of {len(chance)}, that reach it", [float(h) for h in hits],
                [1.0] * len(hits), None, kind="pairs", unit="",
            )
        )  # fmt: skip
    what = f"searches for HEP-CNN on {_EVENTS} events, {len(SEEDS)} seeds"
    against = "random search, and schedules that stay"
    return Result("tune-search", what, against, tuple(rows), timed=False)


BENCHMARKS = (Benchmark("tune-search", 152, measure),)
