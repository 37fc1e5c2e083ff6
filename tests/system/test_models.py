"""The bundled networks have the published sizes, and train, on both backends of Keras, in the images."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.system import hosts

PROGRAMS = hosts.PROGRAMS
# Trainable parameters, and the shape before the head; fairlead.ml.models has the sources.
PUBLISHED = {
    "hepcnn 64": (4_494_594, [8, 8, 128]),
    "hepcnn 224": (594_178, [14, 14, 128]),
    "hepcnn 224 of 64": (594_178, [4, 4, 128]),
    "resnet50 v1 1000": (25_557_032, [7, 7, 2048]),
    "resnet50 v1 1001": (25_559_081, [7, 7, 2048]),
    "resnet50 v2 1000": (25_549_352, [7, 7, 2048]),
    "resnet50 v2 1001": (25_551_401, [7, 7, 2048]),
    "resnet50 v2 10": (23_520_842, [2, 2, 2048]),
    "cosmoflow sc18 3": (7_041_443, [2, 2, 2, 256]),
    "cosmoflow sc18 2": (7_041_186, [2, 2, 2, 256]),
    "cosmoflow mlperf": (8_907_556, [4, 4, 4, 512]),
    "cosmoflow mlperf k2": (5_597_604, [4, 4, 4, 512]),
    "cosmoflow mlperf 32": (4_776_131, [1, 1, 1, 512]),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(b, marks=pytest.mark.full) for b in ("tensorflow", "torch")],
)
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    torch = request.param == "torch"
    options = hosts.keras_on_torch() if torch else ()
    done = hosts.fairlead(
        "run", "-q", "-n", "1", *options, "-B", PROGRAMS, hosts.image("pytorch" if torch else "tensorflow"), "--",
        "python3", PROGRAMS / "models.py", limit_s=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    output: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    assert output["backend"] == request.param
    return output


def test_networks_have_the_published_sizes(found: dict[str, Any]) -> None:
    assert {name: (count, shape) for name, (count, shape) in found["built"].items()} == PUBLISHED


def test_a_step_of_lars_and_larc_moves_every_weight(found: dict[str, Any]) -> None:
    for moved, weights in found["steps"].values():
        assert moved == weights


def test_weight_decay_leaves_out_batch_normalization_alone(found: dict[str, Any]) -> None:
    # Convolutions, of which the first block of each stage has one more, and the kernel and bias of the last layer.
    assert len(found["decay"]) == 5
    assert set(map(tuple, found["decay"].values())) == {(True, 1 + 16 * 3 + 4 + 2)}
