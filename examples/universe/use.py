"""A simulation job in which the surrogate stands in for the time steps, and says what that costs and gains.

    $ fairlead run -n 2 tensorflow -- python3 examples/universe/use.py --model model.npz -o spectra.json

All universes are made by the stand-in, on the ranks that have their planes; `--check` of them by the simulation too, which
gives the error and the speed-up, next to those of linear theory and of simulations with fewer steps.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import surrogate
from choose import drawn
from cosmos import Cosmology, density, linear, simulate, spectra
from mpi4py import MPI
from slabs import Slabs
from whole import whole

COARSE = (2, 4)  # steps


def timed(make: Callable[[], np.ndarray]) -> tuple[np.ndarray, float]:
    """What ``make`` makes on all ranks, and the seconds until the last has it."""
    MPI.COMM_WORLD.Barrier()
    begun = MPI.Wtime()
    made = make()
    MPI.COMM_WORLD.Barrier()
    return made, MPI.Wtime() - begun


def compared(slabs: Slabs, one: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """How far displacements are from the simulation's, in cells; their density's power and phases for half of all k."""
    square = slabs.comm.allreduce(float(np.sum((one - truth) ** 2)))
    power, true, cross = spectra(slabs, density(slabs, one), density(slabs, truth))
    half = slice(0, len(power) // 2)
    return {
        "displacement_cells": (square / (3 * slabs.cells**3)) ** 0.5,
        "power_relative": float(np.mean(np.abs(power / true - 1)[half])),
        "correlation": float(np.mean((cross / np.sqrt(power * true))[half])),
    }


def main() -> None:
    """Takes the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--universes", type=int, default=8)
    parser.add_argument("--check", type=int, default=3)
    parser.add_argument("--cells", type=int, default=32)
    parser.add_argument("--cell", type=float, default=2.0, help="Mpc/h")
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    surrogate.threads(1)
    slabs = Slabs(MPI.COMM_WORLD, given.cells)
    begun = MPI.Wtime()
    stand_in = surrogate.StandIn(given.model)
    loaded = MPI.Wtime() - begun
    products, checks = [], []
    for number, pair in enumerate(drawn(given.universes, seed=9)):
        cosmology = Cosmology(*pair)
        start = linear(slabs, cosmology, given.cell * given.cells, 3_000_000 + number)
        end, seconds = timed(lambda: stand_in(slabs, pair, start))  # noqa: B023
        field = density(slabs, end)
        power = spectra(slabs, field, field)[0] * (given.cell**3 / given.cells**3)
        products.append({"parameters": pair.tolist(), "power": power.tolist(), "seconds": seconds})
        if number < given.check:
            checks.append(checked(slabs, cosmology, start, end, given.steps))
            checks[-1]["seconds"]["stand-in"] = seconds
    if MPI.COMM_WORLD.rank == 0:
        summary = summed(checks, [p["seconds"] for p in products], loaded)
        with whole(given.output) as stream:
            json.dump({"summary": summary, "checks": checks, "universes": products}, stream)
        error = summary["error"]["stand-in"]["displacement_cells"]
        print(
            f"{summary['speed_up']:.1f} times as fast as the simulation, {error:.3f} cells from it"
        )


def checked(slabs: Slabs, cosmology: Cosmology, start: np.ndarray, end: np.ndarray, steps: int) -> dict[str, Any]:  # fmt: skip
    """The stand-in's universe, and cheaper ones, against the simulation's; with their seconds."""
    truth, seconds = timed(lambda: simulate(slabs, cosmology, start, steps))
    said: dict[str, Any] = {"seconds": {"simulation": seconds}, "error": {}}
    said["error"]["stand-in"] = compared(slabs, end, truth)
    said["error"]["linear theory"] = compared(slabs, start, truth)
    for few in COARSE:
        coarse, seconds = timed(lambda: simulate(slabs, cosmology, start, few))  # noqa: B023
        said["seconds"][f"{few} steps"] = seconds
        said["error"][f"{few} steps"] = compared(slabs, coarse, truth)
    return said


def summed(checks: list[dict[str, Any]], seconds: list[float], loaded: float) -> dict[str, Any]:
    """Medians over what was checked. The first use of a network traces it, and is counted apart."""
    own = float(np.median(seconds[1:] or seconds))
    took = {name: float(np.median([c["seconds"][name] for c in checks])) for name in checks[0]["seconds"]}  # fmt: skip
    error = {
        name: {
            what: float(np.median([c["error"][name][what] for c in checks]))
            for what in checks[0]["error"][name]
        }
        for name in checks[0]["error"]
    }
    return {
        "ranks": MPI.COMM_WORLD.size,
        "seconds": {**took, "stand-in": own, "loading": loaded, "first use": seconds[0]},
        "speed_up": took["simulation"] / own,
        "error": error,
    }


if __name__ == "__main__":
    main()
