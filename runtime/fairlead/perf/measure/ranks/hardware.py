"""Bandwidth of memory and storage, and of checkpoints:
``python3 -m fairlead.perf.measure.ranks.hardware --config FILE`` on every rank.

Memory: all ranks copy arrays larger than any cache at once; bytes read and bytes written count alike, as in McCalpin's
STREAM. Rates are those of a node, and the slowest node sets the time. Storage: rank 0 writes one file and waits until it
is on disk. Checkpoints: the same number of bytes, written as a training writes them.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.comm.mpi import connect
from fairlead.ml.train import checkpoint
from fairlead.perf.measure.program import read_settings, write_document

_COPIED = 128 << 20  # bytes of an array
_PIECE = 8 << 20
_COPIES = 3  # of a sample


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        folder: where files and checkpoints are written.
        bytes: size of a checkpoint.
        repeats: samples of each.
    """

    out: Path
    folder: Path
    bytes: int
    repeats: int


def main(words: Sequence[str]) -> None:
    settings = read_settings(Settings, words)
    connect()  # an exception of one rank ends all: the others would wait for it forever
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rates = memory(world, settings.repeats)
    if world.rank == 0:
        stored = storage(settings.folder, settings.bytes, settings.repeats)
        write_document(settings.out, {"memory": rates, **stored})
    world.Barrier()


def memory(world: Any, repeats: int) -> list[float]:
    """Bytes/s of a node, shape (repeats,); collective."""
    nodes = len(set(world.allgather(os.uname().nodename)))
    rates = []
    source = np.ones(_COPIED // 8)
    target = np.zeros_like(source)
    for _ in range(repeats):
        world.Barrier()
        begun = time.perf_counter()
        for _ in range(_COPIES):
            np.copyto(target, source)
        world.Barrier()
        seconds = time.perf_counter() - begun
        rates.append(2 * _COPIES * _COPIED * world.size / nodes / seconds)
    return rates


def storage(folder: Path, size: int, repeats: int) -> dict[str, Any]:
    """Rates of files (``disk``) and of checkpoints in ``folder``, bytes/s, each of shape (repeats,).

    If the disk is full, ``failed`` says so and there are no rates. All files are removed again.
    """
    rates: dict[str, Any] = {"disk": [], "checkpoint": [], "failed": ""}
    try:
        rates["disk"] = [_write_file(folder / "raw", size) for _ in range(repeats)]
        rates["checkpoint"] = [_write_checkpoint(folder, size, n) for n in range(repeats)]
    except OSError as exc:
        rates["failed"] = exc.strerror or str(exc)
    for left in (*folder.glob("step-*.npz"), folder / "raw"):
        left.unlink(missing_ok=True)
    return rates


def _write_file(path: Path, size: int) -> float:
    """Bytes/s of a plain file, until it is on disk."""
    piece = np.random.default_rng(1).bytes(_PIECE)
    begun = time.perf_counter()
    with path.open("wb", buffering=0) as stream:
        for start in range(0, size, _PIECE):
            part = memoryview(piece)[: min(_PIECE, size - start)]
            if stream.write(part) < len(part):  # the disk is full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(stream.fileno())
    seconds = time.perf_counter() - begun
    path.unlink()
    return size / seconds


def _write_checkpoint(folder: Path, size: int, number: int) -> float:
    """Bytes/s of a checkpoint with the shape of a network: a few large arrays and some small ones."""
    source = np.random.default_rng(number)
    large = source.random(size // 4, np.float32)
    arrays = [*np.array_split(large, 12), *(np.zeros(64, np.float32) for _ in range(50))]
    state = checkpoint.Checkpoint(number, {"of": "a validation"}, arrays, [[]])
    begun = time.perf_counter()
    checkpoint.write(folder, state)
    return state.bytes / (time.perf_counter() - begun)


if __name__ == "__main__":
    main(sys.argv[1:])
