"""What memory and storage give by themselves, and what a checkpoint gets of it:
``python3 -m fairlead.validate.hardware --out FILE --folder DIR --bytes N`` on every rank.

Memory: all ranks copy arrays larger than any cache at once; bytes read and bytes written count alike, as in McCalpin's
STREAM. Storage: rank 0 writes one file of ``--bytes`` from memory and waits until it is on the disk. Checkpoints: the
same bytes as a training writes them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

from fairlead.paths import atomic_write
from fairlead.train import checkpoint

_COPIED = 128 << 20  # bytes of an array
_PIECE = 8 << 20
_COPIES = 3  # of a sample


def main() -> None:
    """The command line of one rank."""
    parser = argparse.ArgumentParser(
        prog="python3 -m fairlead.validate.hardware", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file that rank 0 writes")
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoints are written")
    parser.add_argument("--bytes", type=int, required=True, help="of a checkpoint")
    parser.add_argument("--repeats", type=int, default=6)
    given = parser.parse_args()
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    memory = []
    source = np.ones(_COPIED // 8)
    target = np.zeros_like(source)
    for _ in range(given.repeats):
        world.Barrier()
        begun = time.perf_counter()
        for _ in range(_COPIES):
            np.copyto(target, source)
        world.Barrier()
        seconds = time.perf_counter() - begun
        memory.append(2 * _COPIES * _COPIED * world.size / seconds)
    del source, target
    if world.rank == 0:
        disk = [_written(given.folder / "raw", given.bytes) for _ in range(given.repeats)]
        told = {
            "memory": memory,
            "disk": disk,
            "checkpoint": [_checkpoint(given.folder, given.bytes, n) for n in range(given.repeats)],
        }
        for left in given.folder.glob("step-*.npz"):
            left.unlink()
        with atomic_write(given.out, "w") as stream:
            json.dump(told, stream)
    world.Barrier()


def _written(path: Path, size: int) -> float:
    """Bytes a second of a plain file, until it is on the disk."""
    piece = np.random.default_rng(1).bytes(_PIECE)
    begun = time.perf_counter()
    with path.open("wb", buffering=0) as stream:
        for start in range(0, size, _PIECE):
            stream.write(memoryview(piece)[: min(_PIECE, size - start)])
        os.fsync(stream.fileno())
    seconds = time.perf_counter() - begun
    path.unlink()
    return size / seconds


def _checkpoint(folder: Path, size: int, number: int) -> float:
    """Bytes a second of a checkpoint of a network's shape: a few large arrays and some small ones."""
    source = np.random.default_rng(number)
    large = source.random(size // 4, np.float32)
    arrays = [*np.array_split(large, 12), *(np.zeros(64, np.float32) for _ in range(50))]
    state = checkpoint.Checkpoint(number, {"of": "a validation"}, arrays, [[]])
    begun = time.perf_counter()
    checkpoint.write(folder, state)
    return state.bytes / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
