"""What memory and storage give by themselves, and what a checkpoint gets of it:
``python3 -m fairlead.perf.measure.ranks.hardware --out FILE --folder DIR --bytes N`` on every rank.

Memory: all ranks copy arrays larger than any cache at once; bytes read and bytes written count alike, as in McCalpin's
STREAM, and are those of a node: where there are several, the slowest sets the time. Storage: rank 0 writes one file of ``--bytes`` from memory and waits until it is on the disk. Checkpoints: the
same bytes as a training writes them.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.base.paths import atomic_write
from fairlead.comm.backend import connect
from fairlead.ml.train import checkpoint

_COPIED = 128 << 20  # bytes of an array
_PIECE = 8 << 20
_COPIES = 3  # of a sample


def main() -> None:
    """The command line of one rank."""
    parser = argparse.ArgumentParser(
        prog="python3 -m fairlead.perf.measure.ranks.hardware", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file that rank 0 writes")
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoints are written")
    parser.add_argument("--bytes", type=int, required=True, help="of a checkpoint")
    parser.add_argument("--repeats", type=int, default=6)
    given = parser.parse_args()
    connect()  # an exception of one rank ends all: the others would wait for it for ever
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    nodes = len(set(world.allgather(os.uname().nodename)))
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
        memory.append(2 * _COPIES * _COPIED * world.size / nodes / seconds)
    del source, target
    if world.rank == 0:
        stored = storage(given.folder, given.bytes, given.repeats)
        with atomic_write(given.out, "w") as stream:
            json.dump({"memory": memory, **stored}, stream)
    world.Barrier()


def storage(folder: Path, size: int, repeats: int) -> dict[str, Any]:
    """Rates of files (``disk``) and of checkpoints in ``folder``, bytes/s, each of shape (repeats,).

    Where the disk is full, ``failed`` says so, and there are no rates. Nothing is left on it.
    """
    told: dict[str, Any] = {"disk": [], "checkpoint": [], "failed": ""}
    try:
        told["disk"] = [_written(folder / "raw", size) for _ in range(repeats)]
        told["checkpoint"] = [_checkpoint(folder, size, number) for number in range(repeats)]
    except OSError as exc:
        told["failed"] = exc.strerror or str(exc)
    for left in (*folder.glob("step-*.npz"), folder / "raw"):
        left.unlink(missing_ok=True)
    return told


def _written(path: Path, size: int) -> float:
    """Bytes a second of a plain file, until it is on the disk."""
    piece = np.random.default_rng(1).bytes(_PIECE)
    begun = time.perf_counter()
    with path.open("wb", buffering=0) as stream:
        for start in range(0, size, _PIECE):
            part = memoryview(piece)[: min(_PIECE, size - start)]
            if stream.write(part) < len(part):  # the last that there was room for
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
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
