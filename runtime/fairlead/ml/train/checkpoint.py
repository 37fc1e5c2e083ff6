"""Checkpoints of a training, from which it continues bit by bit.

One file per checkpoint, ``step-00000120.npz``, as NumPy writes it: a zip of arrays, each with its CRC-32, so damage is
detected before any array is used. Rank 0 writes, in a thread, from copies; a file gets its name when its bytes are on the
disk, so a kill at any moment leaves only whole checkpoints. The last two are kept: the newer may be damaged by what
killed the run. A folder belongs to one training: a fresh start in it is refused.

A checkpoint holds the weights and the optimizer's state, which all ranks share; the moving statistics and dropout seeds
of each rank; the step; and the losses so far. The order of the data follows from seed, epoch and step.
"""

from __future__ import annotations

import json
import shlex
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.base import bounded_json
from fairlead.base.errors import fail
from fairlead.base.paths import atomic_write
from fairlead.ml.data.samples import Array
from fairlead.ml.train.model import CheckpointTime
from fairlead.trace.spans import span

VERSION = 1
_KEPT = 2
_HEAD = "told.json"


@dataclass(frozen=True)
class Checkpoint:
    """A training's state.

    Attributes:
        step: steps that are complete.
        identity: facts of the training; one with other facts must not continue from it.
        shared: arrays that all ranks share, in the order of the model's variables.
        own: the own arrays of each rank.
        more: JSON values: the losses, and the names of the arrays.
    """

    step: int
    identity: Mapping[str, Any]
    shared: Sequence[Array]
    own: Sequence[Sequence[Array]]
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def named(self) -> dict[str, Array]:
        """The arrays of rank 0 by name; empty where the names are not kept."""
        names = [name for part in self.more.get("names", ()) for name in part]
        return dict(zip(names, (*self.shared, *self.own[0]), strict=False)) if self.own else {}

    @property
    def bytes(self) -> int:
        """Of all arrays."""
        return sum(a.nbytes for a in self.shared) + sum(a.nbytes for own in self.own for a in own)


def path_of(folder: Path, step: int) -> Path:
    """``step-00000120.npz``."""
    return folder / f"step-{step:08d}.npz"


def write(folder: Path, state: Checkpoint) -> Path:
    """Writes a checkpoint and removes all others except the previous one; returns its path.

    Files of later steps are removed, too: they are damaged, or the training would have continued from them.

    Raises:
        OSError: the disk is full, or the folder cannot be written; the other checkpoints are then unchanged.
        ValueError: an array is of objects.
    """
    arrays = {f"shared{i:05d}": a for i, a in enumerate(state.shared)}
    for rank, own in enumerate(state.own):
        arrays |= {f"rank{rank:05d}-{i:05d}": a for i, a in enumerate(own)}
    head = {
        "version": VERSION,
        "step": state.step,
        "identity": dict(state.identity),
        "ranks": len(state.own),
        "arrays": len(arrays),
        "told": dict(state.more),
    }
    path = path_of(folder, state.step)
    with atomic_write(path, "w+b") as stream, zipfile.ZipFile(stream, "w") as file:
        file.writestr(_HEAD, json.dumps(head))
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(array, order="C"), allow_pickle=False)
    held = kept(folder)
    whole = held[: held.index(path) + 1][-_KEPT:]
    for other in set(held) - set(whole):
        other.unlink(missing_ok=True)
    return path


def kept(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the oldest first, whole or not."""
    return sorted(folder.glob("step-*.npz"))


def read(path: Path) -> Checkpoint:
    """A checkpoint, each array checked by its CRC-32.

    Raises:
        ValueError: the file is truncated, altered, or not a checkpoint; the message says how.
        OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as file:
            head = bounded_json.loads(file.read(_HEAD))
            if head["version"] != VERSION:
                raise ValueError(f"of version {head['version']}, this fairlead reads {VERSION}")
            names = sorted(set(file.namelist()) - {_HEAD})
            if len(names) != head["arrays"]:
                raise ValueError(f"{len(names)} of {head['arrays']} arrays")
            held: dict[str, list[Array]] = {}
            for name in names:
                with file.open(name) as entry:
                    array = np.lib.format.read_array(entry, allow_pickle=False)
                    # Reading the end of the entry compares its checksum.
                    if entry.read(1):
                        raise ValueError(f"more in {name} than its array")
                held.setdefault(name.split("-")[0] if "-" in name else "shared", []).append(array)
        own = [held.get(f"rank{rank:05d}", []) for rank in range(head["ranks"])]
        return Checkpoint(head["step"], head["identity"], held.get("shared", []), own, head["told"])
    except OSError:
        raise
    except Exception as exc:  # damaged bytes make zipfile and NumPy raise nearly any
        raise ValueError(f"is not a whole checkpoint: {exc or type(exc).__name__}") from exc


def newest(folder: Path, report: Callable[[str], None]) -> Checkpoint | None:
    """The last whole checkpoint of a folder; None if there is none.

    Args:
        report: called with a sentence for each damaged one.
    """
    for path in reversed(kept(folder)):
        try:
            return read(path)
        except (OSError, ValueError) as exc:
            report(f"{path} {exc}" if isinstance(exc, ValueError) else f"{path}: {exc}")
    return None


def start_of(
    folder: Path, identity: Mapping[str, Any], resume: bool, report: Callable[[str], None]
) -> Checkpoint | None:
    """The checkpoint from which the training of that identity goes on; None for a fresh start.

    Args:
        report: called with a sentence for each damaged one.
    Raises:
        FairleadError: the last whole checkpoint belongs to another training; or ``resume`` is False and there are
            checkpoints, which could not be distinguished from new ones.
    """
    if not resume:
        if there := kept(folder):
            raise fail("checkpoint-there", there=there[-1], folder=shlex.quote(str(folder)))
        return None
    checkpoint = newest(folder, report)
    if checkpoint is None:
        return None
    differ = [
        f"{k}: {checkpoint.identity.get(k)!r} there, {asked!r} asked for"
        for k, asked in identity.items()
        if checkpoint.identity.get(k) != asked
    ]
    if differ:
        raise fail(
            "checkpoint-other", path_of=path_of(folder, checkpoint.step), differ="; ".join(differ)
        )
    return checkpoint


class Writer:
    """Writes checkpoints in the background, one at a time.

    As a context manager: a checkpoint in progress is on the disk when the block ends, also by an error.

    Args:
        folder: for the files; created if missing.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".step-*.partial"):  # of a run that was killed
            left.unlink(missing_ok=True)
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[CheckpointTime] | None = None
        self.written: list[CheckpointTime] = []

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._pool:  # after an error, which is the block's, the checkpoint is still completed
            if kind is None:
                self.wait()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is still being written."""
        return self._writing is not None and not self._writing.done()

    def start(self, state: Checkpoint, held_s: float) -> None:
        """Starts to write; first waits for the previous checkpoint.

        Args:
            state: copies, which must not change any more.
            held_s: see :class:`fairlead.ml.train.model.CheckpointTime`.
        Raises:
            FairleadError: the previous checkpoint could not be written.
        """
        self.wait()

        def run() -> CheckpointTime:
            begun = time.perf_counter()
            with span("write a checkpoint", step=state.step, bytes=state.bytes):
                write(self._folder, state)
            return CheckpointTime(state.step, state.bytes, time.perf_counter() - begun, held_s)

        self._writing = self._pool.submit(run)

    def wait(self) -> None:
        """Waits until the last checkpoint is on the disk.

        Raises:
            FairleadError: it could not be written.
        """
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        if failed := writing.exception():
            raise fail("checkpoint-write", folder=self._folder, failed=failed) from failed
        self.written.append(writing.result())
