"""What a run record takes: bytes and seconds at a thousand ranks, and what ``--record`` adds to a run."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.result import (
    FAIRLEAD,
    Benchmark,
    Compared,
    Result,
    absolute,
    alternate,
    compare,
    seconds_of,
)
from fairlead.base.paths import cache_dir
from fairlead.image.keys import new_key, open_private
from fairlead.proof.verdict import Proof, RankProof
from fairlead.record import folder as folders
from fairlead.record.gather import Attached, ranks_of
from fairlead.record.model import RunRecord
from fairlead.session.model import Choices
from fairlead.session.prepare import prepare
from fairlead.swap.model import Request

IMAGE, RANKS, ROUNDS = "tensorflow", 1000, 20
BAR_S, BAR_KB = 0.1, 200.0
_COMMAND = ("python3", "-c", "import tensorflow; from mpi4py import MPI")
_NOOP = ("python3", "-c", "from mpi4py import MPI")
_CASES = {"equal ranks": 0, "ranks that map a library of their own": 1}


def measure() -> Result:
    """A real record of two ranks, written again as one of a thousand on 125 nodes, signed."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        folder = Path(name)
        seconds_of(
            (*FAIRLEAD, "run", "-n", "2", "--record", folder / "two", IMAGE, "--", *_COMMAND)
        )
        two = folders.read(folder / "two", {}).record
        attached = Attached(
            *((folder / "two" / n).read_bytes() for n in (folders.SBOM, folders.LOCK))
        )
        new_key(folder / "key", b"bench")
        key = open_private(folder / "key", lambda: b"bench")
        plan = prepare(IMAGE, Choices(), Request(ranks=2, command=_COMMAND)).plan
        proof = _proof(two)
        for case, own in _CASES.items():
            notes = _notes(folder / case, [library.path for library in two.ranks.libraries], own)

            def written(notes: Path = notes) -> float:
                shutil.rmtree(folder / "many", ignore_errors=True)
                begun = time.perf_counter()
                ranks = ranks_of(plan, RANKS, proof, notes, cache_dir())
                folders.write(folder / "many", replace(two, ranks=ranks), attached, key)
                return time.perf_counter() - begun

            written()  # warm
            rows.append(absolute(f"{case}: written", [written() for _ in range(ROUNDS)], BAR_S))
            size = sum(file.stat().st_size for file in (folder / "many").iterdir()) / 1000
            rows.append(absolute(f"{case}: size", [size], BAR_KB, "kB"))
        rows.append(_added(folder))
    what = f"the record of a run of {RANKS} ranks in {IMAGE}, without the digests of its data"
    return Result("run-record", what, "nothing", tuple(rows))


def _proof(two: RunRecord) -> Proof:
    group = two.ranks.groups[0]

    def rank(number: int) -> RankProof:
        host = f"nid{number // 8:06}"
        return RankProof(
            number, RANKS, host, group.mpi, 1, 1, group.version, "ofi", ("cxi", "shm"), ring_ok=True, namespaces={},
            devices=("/dev/cxi0",),
        )  # fmt: skip

    return Proof(RANKS, group.mpi, 1, two.before.mpi.title, tuple(map(rank, range(RANKS))), (), 1.0)


def _notes(folder: Path, libraries: list[str], own: int) -> Path:
    """What the witness leaves in a run's folder."""
    folder.mkdir()
    for rank in range(RANKS):
        key = f"{rank if own else 0:x}"
        mine = [*libraries, *[f"/tmp/rank-{rank}/compiled.so"] * own]
        (folder / f"maps.{rank}").write_text(f"{len(mine)} {key}\n")
        (folder / f"code.{key}").write_text("\n".join(mine) + "\n")
    return folder


def _added(folder: Path) -> Compared:
    """What ``--record`` adds to a run of two ranks, from its start to its end."""
    number = 0

    def recorded() -> float:
        nonlocal number
        number += 1
        own = ("--record", folder / f"run-{number}")
        return seconds_of(
            (*FAIRLEAD, "run", "-q", "-n", "2", *own, "mpi-base", "--", *_NOOP), os.environ
        )

    sides: dict[str, Callable[[], float]] = {
        "recorded": recorded,
        "plain": lambda: seconds_of((*FAIRLEAD, "run", "-q", "-n", "2", "mpi-base", "--", *_NOOP)),
    }
    for side in sides.values():
        side()
    times = alternate(ROUNDS, sides)
    label = "fairlead run -n 2 --record mpi-base -- python3, against the same without"
    return compare(label, times["recorded"], times["plain"], None, kind="difference")


BENCHMARKS = (Benchmark("run-record", 55, measure),)
