"""The model to beat: ridge regression on standardised pixels; and the area under the ROC curve.

``python3 -m fairlead.data.baseline --data DIR --out FILE`` measures it on the files of
:mod:`fairlead.data.generate`. A classifier that only beats chance has perhaps learnt what a linear
model sees; one that beats this has learnt shapes.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.data.shards import Rows
from fairlead.findings import fail
from fairlead.paths import atomic_write

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
        raise fail(
            "an AUC needs signal, background, and scores that are numbers",
            where="fairlead.data.baseline.auc",
            why=f"{signal} signal, {background} background, {int(np.isnan(scores).sum())} NaN",
            remedy="pass more events; for NaN, lower the learning rate",
            check="auc",
        )
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


def ridge_scores(
    train: npt.NDArray[Any], labels: Labels, test: npt.NDArray[Any], penalty: float = PENALTY
) -> npt.NDArray[np.float64]:
    """Scores of ridge regression, in its dual form: one equation an event, not one a pixel.

    Args:
        train: (n, ...), flattened to features; these are standardised by ``train``'s own mean and
            deviation, and a feature that never varies is left out.
        labels: (n,), 0 or 1.
        test: (m, ...), of the same features.
        penalty: weight of the squared coefficients.
    Returns:
        (m,), higher for signal.
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
    dual = np.linalg.solve(gram, labels - labels.mean())
    scores: npt.NDArray[np.float64] = z @ (x.T @ dual)
    return scores


def measure(folder: Path, train: int, val: int) -> dict[str, float]:
    """AUC of the linear model on the first ``train`` and ``val`` events of the two splits."""
    begun = time.monotonic()
    x, labels = _first(folder, "train", train)
    z, truth = _first(folder, "val", val)
    return {
        "auc": auc(truth, ridge_scores(x, labels, z)),
        "train": len(labels),
        "val": len(truth),
        "seconds": time.monotonic() - begun,
    }


def _first(folder: Path, split: str, events: int) -> tuple[npt.NDArray[np.float32], Labels]:
    images, labels, held = [], [], 0
    for batch in Rows(folder, split, 0, 1).in_order(500):
        take = min(events - held, len(batch))
        images.append(batch.inputs[:take])
        labels.append(batch.targets[:take])
        held += take
        if held == events:
            break
    return np.concatenate(images), np.concatenate(labels)


def main() -> None:
    """The command line; ``--help`` tells."""
    parser = argparse.ArgumentParser(prog="python3 -m fairlead.data.baseline", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of HEP-CNN files")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--train", type=int, default=1500, help="events to fit")
    parser.add_argument("--val", type=int, default=2000, help="held-out events to score")
    given = parser.parse_args()
    result = measure(given.data, given.train, given.val)
    with atomic_write(given.out, "w") as stream:
        json.dump(result, stream)


if __name__ == "__main__":
    main()
