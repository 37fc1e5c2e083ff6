"""The synthetic universes and gratings: reproducible, of equal sums, and told apart by what is not linear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairlead.ml.data import synthetic_images, synthetic_universe


def ridge(train: Any, wanted: Any, held: Any, penalty: float) -> Any:
    """A linear model of standardised features, fitted in the space of samples."""
    mean, spread = train.mean(0), train.std(0) + 1e-9
    a, b = (train - mean) / spread, (held - mean) / spread
    kernel = a @ a.T + penalty * np.eye(len(a))
    return b @ (a.T @ np.linalg.solve(kernel, wanted - wanted.mean(0))) + wanted.mean(0)


def spectrum(counts: Any) -> Any:
    """Log mean power in 16 bins of k, and three moments, of log(1 + counts)."""
    x = np.log1p(counts.astype(np.float32))[..., 0].astype(float)
    bins = np.minimum(synthetic_universe.wave_numbers(x.shape[1]).astype(int), 16)
    weights = np.abs(np.fft.rfftn(x - x.mean((1, 2, 3), keepdims=True), axes=(1, 2, 3))) ** 2
    means = [[w[bins == one].mean() for one in range(1, 17)] for w in weights]
    centred = x - x.mean((1, 2, 3), keepdims=True)
    moments = [x.mean((1, 2, 3)), x.var((1, 2, 3)), (centred**3).mean((1, 2, 3))]
    return np.column_stack([np.log(means), *moments])


@pytest.mark.parametrize(
    "make", [synthetic_universe.shard, synthetic_universe.redshifts, synthetic_images.shard]
)
def test_shard_depends_on_its_arguments_alone(make: Any) -> None:
    def of(*words: Any) -> Any:
        found = make(*words, 4, 16)
        return [getattr(found, name).tobytes() for name in found.__dataclass_fields__]

    assert of(1, "train", 0) == of(1, "train", 0)
    others = {
        tuple(of(*words))
        for words in ((1, "train", 0), (2, "train", 0), (1, "val", 0), (1, "train", 1))
    }
    assert len(others) == 4


def test_universes_at_four_redshifts_are_one_field_that_grows() -> None:
    made = synthetic_universe.redshifts(1, "train", 0, 120, 16)
    assert made.inputs.shape == (120, 16, 16, 16, 4) and made.inputs.dtype == np.int16
    assert made.targets.shape == (120, 4) and abs(made.targets).max() <= 1
    x = np.log1p(made.inputs.astype(np.float32)).reshape(120, -1, 4)
    assert abs(made.inputs.mean((0, 1, 2, 3)) - 4).max() < 0.2
    today, before = x[..., 0], x[..., 3]
    alike = [np.corrcoef(a, b)[0, 1] for a, b in zip(today, before, strict=True)]
    assert min(alike) > 0.1
    spread = made.inputs.reshape(120, -1, 4).var(1)
    assert (np.diff(spread.mean(0)) < 0).all()  # each weaker than the one before
    # What is beyond the counts' own noise, over today's, tells the growth, and the turnover does not.
    grown = (spread[:, 1] - 4) / (spread[:, 0] - 4)
    assert np.corrcoef(grown, made.targets[:, 3])[0, 1] > 0.8
    assert abs(np.corrcoef(grown, made.targets[:, 0])[0, 1]) < 0.4


@pytest.mark.full
def test_universes_have_equal_counts_and_a_spectrum_that_distinguishes_them() -> None:
    train, held = (
        synthetic_universe.shard(1, "train", 0, 500),
        synthetic_universe.shard(1, "val", 0, 200),
    )
    assert train.inputs.dtype == np.int16 and abs(train.targets).max() <= 1
    sums = train.inputs.reshape(500, -1).mean(1)
    assert abs(sums.mean() - 4) < 0.2
    for parameter in (0, 2):
        assert abs(np.corrcoef(sums, train.targets[:, parameter])[0, 1]) < 0.2
    says_mean = np.abs(held.targets - train.targets.mean(0)).mean(0)
    voxels = [
        np.log1p(part.inputs.astype(np.float32)).reshape(len(part.inputs), -1)
        for part in (train, held)
    ]
    linear = np.abs(ridge(voxels[0], train.targets, voxels[1], 1e5) - held.targets).mean(0)
    known = np.abs(
        ridge(spectrum(train.inputs), train.targets, spectrum(held.inputs), 1.0) - held.targets
    ).mean(0)
    assert linear[0] > 0.9 * says_mean[0] and linear[2] > 0.9 * says_mean[2]
    assert known[0] < 0.6 * says_mean[0] and known[2] < 0.9 * says_mean[2]


def test_gratings_are_recognised_by_their_spectrum_and_hardly_by_a_line() -> None:
    train, held = (
        synthetic_images.shard(1, "train", 0, 600, 64),
        synthetic_images.shard(1, "val", 0, 200, 64),
    )
    assert train.inputs.dtype == np.float32 and set(train.targets) == set(range(10))
    wanted = np.eye(10)[train.targets]

    def right(of: Any, penalty: float) -> float:
        return float(
            (
                ridge(of(train.inputs), wanted, of(held.inputs), penalty).argmax(1) == held.targets
            ).mean()
        )

    linear = right(lambda pixels: pixels.reshape(len(pixels), -1), 1e4)
    waves = right(lambda pixels: np.abs(np.fft.rfft2(pixels.mean(3))).reshape(len(pixels), -1), 1e3)
    assert linear < 0.5 and waves > 0.95
