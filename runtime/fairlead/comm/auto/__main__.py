"""``python3 -m fairlead.comm.auto SCRIPT ARGS…``; see :mod:`fairlead.comm.auto`."""

from __future__ import annotations

import io
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm import auto
from fairlead.comm.auto import files, others, seeds, shared, written
from fairlead.comm.auto.imports import AfterImport

# What launchers set, and Accelerate, transformers and others would make a world of their own from.
_OF_LAUNCH = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TF_CONFIG",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    *(f"OMPI_COMM_WORLD_{of}" for of in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    *(f"MV2_COMM_WORLD_{of}" for of in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script as ``python3 SCRIPT ARGS…`` would."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        raise SystemExit(f"usage: python3 -m fairlead.comm.auto SCRIPT [ARGS]\n\n{auto.__doc__}")
    if not os.path.isfile(words[0]):  # noqa: PTH113, every rank would import pathlib for it
        raise fail("auto-script", words=words[0])
    ranks = comm.init()
    folder = os.path.dirname(os.path.abspath(words[0]))  # noqa: PTH120, PTH100
    AfterImport(
        {
            **dict.fromkeys(others.NAMES, partial(others.refuse, folder)),
            **{name: _patch(name) for name in ("keras", "tensorflow", "torch")},
        }
    ).install()
    sys.argv = words
    sys.path[0] = folder
    if ranks.size == 1:
        _run(words[0])
    else:
        aside = written.Files(ranks.rank, folder)
        _as_serial(ranks.rank, aside)
        try:
            _run(words[0])
            _end(words[0])
            aside.settle()
        finally:
            aside.end()
    comm.finalize()


def _run(script: str) -> None:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as exc:
        if exc.code not in (None, 0):
            raise


def _as_serial(rank: int, aside: written.Files) -> None:
    """Lets the script see one process, with random numbers that are the same on all ranks."""
    AfterImport(
        {
            "random": seeds.of_random,
            "numpy.random": seeds.of_numpy,
            "h5py": aside.h5py,
            "safetensors.torch": files.safetensors,
        }
    ).install()
    for name in _OF_LAUNCH:
        os.environ.pop(name, None)
    sys.stdin = _Input(sys.stdin)
    if rank:
        # A serial script's words, once.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    aside.install()


class _Input(io.TextIOBase):
    """What rank 0 reads, on every rank: launchers give standard input to rank 0 alone. Collective."""

    def __init__(self, own: Any):
        self._own = own

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        return self._read("readline", size)

    def read(self, size: int | None = -1, /) -> str:
        return self._read("read", size)

    def _read(self, how: str, size: int | None) -> str:
        from fairlead.comm.frameworks.common import broadcast_object

        ranks = comm.init()
        text = getattr(self._own, how)(size) if ranks.rank == 0 and self._own else ""
        whole: str = broadcast_object(ranks, text, 0)
        return whole

    def fileno(self) -> int:
        """Raises: it has none, as a file could be read past it."""
        raise io.UnsupportedOperation("fileno")


def _end(script: str) -> None:
    files.end()
    if shared.done != {"gradients", "data"}:
        raise fail("auto-nothing", script=script)
    shared.meet()
    for check in shared.at_end:
        check()


def _patch(name: str) -> Callable[[ModuleType], None]:
    """The function ``patch`` of the module here with that name, which is not loaded before it is needed."""

    def patch(module: Any) -> None:
        import importlib

        if comm.size() > 1:
            importlib.import_module(f"fairlead.comm.auto.{name}").patch(module)

    return patch


if __name__ == "__main__":
    main()
