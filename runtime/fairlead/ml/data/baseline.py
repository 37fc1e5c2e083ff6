"""The model to beat: ridge regression on standardised pixels; and the area under the ROC curve.

``python3 -m fairlead.ml.data.baseline --data DIR --out FILE`` measures it on the files of
:mod:`fairlead.ml.data.generate`. A classifier that only beats chance has perhaps learnt what a linear
model sees; one that beats this has learnt shapes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.base.errors import fail
from fairlead.base.paths import atomic_write
from fairlead.ml import registry
from fairlead.ml.data.manifest import read_manifest
from fairlead.ml.data.shards import Rows
from fairlead.ml.task import Task

PENALTY = 1e4

Labels = npt.NDArray[np.int32]


def auc(labels: Labels, scores: npt.NDArray[Any]) -> float:
    """Area under the ROC curve, exact: P(score of a signal > score of a background), ties half.

    Args:
        labels: (n,), 1 for signal, 0 for background.
        scores: (n,), any real numbers; only their order counts.
    Raises:
        FairleadError: only one class is there, or a score is not a number.

    >>> auc(np.array([0, 1, 0, 1], np.int32), np.array([0.1, 0.9, 0.4, 0.4]))
    0.875
    """
    signal = int(labels.sum())
    background = len(labels) - signal
    if not signal or not background or np.isnan(scores).any():
        raise fail("auc", signal=signal, background=background, sum=int(np.isnan(scores).sum()))
    # Mann-Whitney: the mean rank of equal scores is shared
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    above = float(ranks[labels == 1].sum()) - signal * (signal + 1) / 2
    return above / (signal * background)


def roc(
    labels: Labels, scores: npt.NDArray[Any], points: int = 101
) -> tuple[tuple[float, float], ...]:
    """The ROC curve: (background kept, signal kept), both 0 to 1, at ``points`` even places."""
    order = np.argsort(-scores, kind="stable")
    hits = labels[order] == 1
    kept_signal = np.concatenate([[0.0], np.cumsum(hits) / max(hits.sum(), 1)])
    kept_background = np.concatenate([[0.0], np.cumsum(~hits) / max((~hits).sum(), 1)])
    x = np.linspace(0, 1, points)
    y = np.interp(x, kept_background, kept_signal)
    y[0] = 0.0
    return tuple((round(float(a), 4), round(float(b), 4)) for a, b in zip(x, y, strict=True))


def ridge(
    train: npt.NDArray[Any],
    wanted: npt.NDArray[Any],
    test: npt.NDArray[Any],
    penalty: float = PENALTY,
) -> npt.NDArray[np.float64]:
    """The predictions of ridge regression, in its dual form: one equation per sample, not per pixel.

    Args:
        train: (n, ...), flattened to features; these are standardised by ``train``'s own mean and
            deviation, and a feature that never varies is left out.
        wanted: (n, outputs).
        test: (m, ...), of the same features.
        penalty: weight of the squared coefficients.
    Returns:
        (m, outputs).
    """
    x = train.reshape(len(train), -1).astype(np.float32)
    z = test.reshape(len(test), -1).astype(np.float32)
    mean, deviation = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    varies = deviation > 0
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=varies)
    x = ((x - mean) * scale).astype(np.float32)
    z = ((z - mean) * scale).astype(np.float32)
    gram = (x @ x.T).astype(np.float64)
    gram[np.diag_indices_from(gram)] += penalty
    usual = wanted.mean(0)
    dual = np.linalg.solve(gram, wanted - usual)
    outputs: npt.NDArray[np.float64] = z @ (x.T @ dual) + usual
    return outputs


def measure(
    folder: Path,
    train: int,
    val: int,
    task: Task,
    left_out: Collection[Path] = (),
    external: bool = False,
) -> dict[str, Any]:
    """The linear model's scores on the first ``train`` and ``val`` samples of the two splits.

    Counts enter as their logarithms, as in the network; classes become one output each. Files of ``left_out`` are
    not read; with ``external``, HDF5 files may have values in other files.
    """
    begun = time.monotonic()
    x, known = _first(folder, "train", train, left_out, external)
    z, truth = _first(folder, "val", val, left_out, external)
    if x.dtype.kind == "i":
        x, z = (np.log1p(counts.astype(np.float32)) for counts in (x, z))
    classes = known.ndim == 1
    wanted = np.eye(task.network.outputs)[known] if classes else known.astype(np.float64)
    outputs = ridge(x, wanted, z, task.penalty)
    return {
        "scores": {name: float(value) for name, value in task.scores(truth, outputs).items()},
        "train": len(known),
        "val": len(truth),
        "seconds": time.monotonic() - begun,
    }


def _first(
    folder: Path, split: str, samples: int, left_out: Collection[Path], external: bool
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    inputs, targets, held = [], [], 0
    manifest = read_manifest(folder, split, skip_damaged=bool(left_out), external=external)
    whole = tuple(shard for shard in manifest.shards if shard.path not in left_out)
    for batch in Rows(replace(manifest, shards=whole), split, 0, 1).in_order(500):
        take = min(samples - held, len(batch))
        inputs.append(batch.inputs[:take])
        targets.append(batch.targets[:take])
        held += take
        if held == samples:
            break
    return np.concatenate(inputs), np.concatenate(targets)


def main() -> None:
    """The command line; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python3 -m fairlead.ml.data.baseline", description=__doc__
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the model's files")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument(
        "--model", choices=registry.names(), default="hepcnn", help="whose task it is"
    )
    parser.add_argument("--train", type=int, default=1500, help="samples to fit")
    parser.add_argument("--val", type=int, default=2000, help="held-out samples to score")
    parser.add_argument(
        "--leave-out", type=Path, action="append", default=[], help="a damaged file; repeatable"
    )
    parser.add_argument(
        "--external-data", action="store_true", help="HDF5 files may have values in other files"
    )
    given = parser.parse_args()
    task = registry.find(given.model)
    result = measure(given.data, given.train, given.val, task, given.leave_out, given.external_data)
    with atomic_write(given.out, "w") as stream:
        json.dump(result, stream)


if __name__ == "__main__":
    main()
