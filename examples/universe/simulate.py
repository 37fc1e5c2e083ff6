"""Simulates universes on all ranks, and writes them as shards in which CosmoFlow's data lie: `x` and `y`.

    $ fairlead run -n 2 tensorflow -- python3 examples/universe/simulate.py --parameters p.json -o shards

`x` has six channels: displacements of linear theory, and those of the simulation; `y` is omega_m and sigma_8 in
[-1, 1]. All ranks simulate each universe; then one of them, in turn, has it whole and writes it into its own shard.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from cosmos import HIGH, LOW, Cosmology, linear, simulate
from mpi4py import MPI
from slabs import Slabs

from fairlead.ml.data.manifest import list_folder


def gathered(slabs: Slabs, field: np.ndarray, root: int) -> np.ndarray | None:
    """A field of all planes on one rank."""
    parts = slabs.comm.gather(field.astype(np.float32), root)
    return None if parts is None else np.concatenate(parts)


def main() -> None:
    """Takes the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--parameters", type=Path, required=True, help="JSON: split, omega_m, sigma_8, seed of each"
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--cells", type=int, default=32)
    parser.add_argument("--cell", type=float, default=2.0, help="Mpc/h")
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    comm = MPI.COMM_WORLD
    slabs = Slabs(comm, given.cells)
    mine: dict[str, list[Any]] = {"train": [], "val": []}
    universes = json.loads(given.parameters.read_text())
    begun = MPI.Wtime()
    for number, (split, omega_m, sigma_8, seed) in enumerate(universes):
        cosmology = Cosmology(omega_m, sigma_8)
        start = linear(slabs, cosmology, given.cell * given.cells, seed)
        end = simulate(slabs, cosmology, start, given.steps)
        fields = gathered(slabs, np.concatenate([start, end], axis=-1), number % comm.size)
        if fields is not None:
            units = 2 * (np.array([omega_m, sigma_8]) - LOW) / (HIGH - LOW) - 1
            mine[split].append((fields, units))
    # Nobody sees the folder before all shards are in it.
    made = given.output.with_name(f".{given.output.name}.tmp")
    if comm.rank == 0:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
    comm.Barrier()
    for split, samples in mine.items():
        if samples:
            with h5py.File(made / f"{split}-{comm.rank:04}.h5", "w") as file:
                file["x"] = np.stack([fields for fields, _ in samples])
                file["y"] = np.stack([units for _, units in samples]).astype(np.float32)
    comm.Barrier()
    if comm.rank == 0:
        list_folder(made)
        made.replace(given.output)
        took = MPI.Wtime() - begun
        print(
            f"{len(universes)} universes on {comm.size} ranks: {took / len(universes):.2f} s each"
        )


if __name__ == "__main__":
    main()
