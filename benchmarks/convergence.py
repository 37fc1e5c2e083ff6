"""Do ranks learn what one process learns? HEP-CNN and CosmoFlow to their held-out score, by seed.

Single process, 2 ranks synchronous, 2 ranks delayed with the guardrails on (a synchronous warm-up of a tenth,
then the learning rate times ``Delayed.scale``): one global batch, one data set, five seeds of weights and order.
A seed's modes start from the same weights and see the same batches.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import plots
from benchmarks.measure import Compared, Result, compare
from benchmarks.sides import Side, Turn, image

SCORES = {"hep": "HEP-CNN: AUC", "cosmo": "CosmoFlow: skill"}
_MODES = {"alone": "one process", "sync": "2 ranks", "delayed": "2 ranks, delayed"}
# The least difference of scores that matters: the standard error of a score on the held-out samples.
_NOISE = {"hep": 0.007, "cosmo": 0.02}


@dataclass(frozen=True)
class Effort:
    """``samples`` and ``epochs`` by model."""

    seeds: int = 5
    samples: tuple[tuple[str, int, int], ...] = (("hep", 3000, 2), ("cosmo", 1200, 4))


def measure(effort: Effort = Effort()) -> Result:
    """Rows: how much less than one process each mode scores, by seed; the bar is what noise explains."""
    found = scores(effort)
    rows = []
    for model, _, _ in effort.samples:
        alone = found[model, "alone"]
        for mode in ("sync", "delayed"):
            rows.append(lost(model, mode, alone, found[model, mode]))
    if effort == Effort():
        groups = {
            SCORES[m]: {title: found[m, mode] for mode, title in _MODES.items()}
            for m, _, _ in effort.samples
        }
        plots.curves(groups, "convergence", "held out")
    return Result(
        "convergence",
        f"held-out score of 2 ranks, over {effort.seeds} seeds of weights and order",
        "one process with the same global batch, data, weights and order",
        tuple(rows),
        {SCORES[m]: f"{n} samples, {e} epochs" for m, n, e in effort.samples},
    )


def lost(model: str, mode: str, alone: list[float], own: list[float]) -> Compared:
    """One process's score less a mode's; at most its spread over seeds, and what the test set resolves."""
    spread = statistics.stdev(alone) if len(alone) > 1 else 0.0
    name = f"{SCORES[model]} lost by {_MODES[mode]}"
    bar = max(spread, _NOISE[model])
    return compare(name, alone, own, bar, kind="difference", unit="score")


def scores(effort: Effort) -> dict[tuple[str, str], list[float]]:
    """Held-out scores by model and mode, one a seed.

    Raises:
        RuntimeError: ranks ended with other weights.
    """
    found: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-")))
        folder.chmod(0o755)
        one, two = (
            stack.enter_context(
                Side(f"learn{n}", image("tensorflow"), ["tf_converge.py"], folder, ranks=n)
            )
            for n in (1, 2)
        )
        for side in (one, two):
            side.ready()
            side.pause()
        for model, samples, epochs in effort.samples:
            for seed in range(effort.seeds):
                for mode in _MODES:
                    with Turn(one if mode == "alone" else two) as side:
                        said = side.ask(
                            "train", model=model, mode=mode, seed=seed, samples=samples, epochs=epochs
                        )  # fmt: skip
                    if len({rank["digest"] for rank in said}) != 1:
                        raise RuntimeError(
                            f"{model}, {mode}, seed {seed}: ranks hold other weights"
                        )
                    found.setdefault((model, mode), []).append(said[0]["score"])
    return found
