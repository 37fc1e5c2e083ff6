"""Whose disk is slow: a file that one rank of each host writes, syncs and reads back, and the judgement over hosts.

Wall time decides, until the data are on the disk: a node's own disk that is worn out or remapped, or its client of a
shared file system that has lost a path, lets every checkpoint and every staging wait for that node.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, median_low

from fairlead.perf.measure.straggler_search import Answer, Kind, Outcome, Straggler, conclude

THRESHOLD = 4.0  # disks vary more than processors do
SIZE = 8 << 20
_MOST_BYTES = 4 << 30  # of all hosts together: the folder may be shared
_PIECE = 1 << 20
# A difference that a page cache or a busy queue makes does not mean a slow disk.
_LEAST_S = 0.05


@dataclass(frozen=True)
class DiskTimes:
    """What the disk under a folder took on one host.

    Attributes:
        seconds: of each file's writing (``write``, until it is on the disk) and of reading it back (``read``).
        failed: why there are none.
    """

    folder: str
    host: str
    rank: int
    seconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    failed: str = ""


def size_for(hosts: int) -> int:
    """Bytes of the file of each host."""
    return max(_PIECE, min(SIZE, _MOST_BYTES // max(1, hosts)))


def folder_of(named: str) -> Path:
    """The folder that is meant on this host: variables are those of its job; empty for that of temporary files."""
    return Path(os.path.expandvars(named) if named else tempfile.gettempdir())


def timed(folder: Path, size: int) -> dict[str, float]:
    """The seconds for one file in a folder: ``write``, until it is on the disk, and ``read``.

    Raises:
        OSError: it cannot be written or read. Nothing is left behind.
    """
    piece = os.urandom(_PIECE)  # some disks compress
    handle, name = tempfile.mkstemp(prefix="fairlead-disk-", dir=folder)
    try:
        begun = time.perf_counter()
        for start in range(0, size, _PIECE):
            part = piece[: min(_PIECE, size - start)]
            if os.write(handle, part) < len(part):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        os.fsync(handle)
        written = time.perf_counter() - begun
        with contextlib.suppress(OSError):  # a file system without it reads from memory
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        begun = time.perf_counter()
        os.lseek(handle, 0, os.SEEK_SET)
        while os.read(handle, _PIECE):
            pass
        return {"write": written, "read": time.perf_counter() - begun}
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):
            Path(name).unlink()


def find_disk(every: Sequence[DiskTimes], threshold: float = THRESHOLD) -> Outcome:
    """The hosts whose files take longer than those of the others in the same folder.

    A disk is slow if even its quickest file takes ``threshold`` times the median over hosts of their medians. Right as
    long as no more than half of the hosts are slow.
    """
    culprits: list[Straggler] = []
    unsure: list[str] = []
    looked = 0
    usual_s: float | None = None
    for folder in dict.fromkeys(times.folder for times in every):
        there = [times for times in every if times.folder == folder]
        well = [times for times in there if not times.failed]
        if len(well) < 2:
            unsure += [
                f"{folder}: {why}" for why in {times.failed for times in there if times.failed}
            ]
            continue
        looked = max(looked, len(well))
        usual = {
            kind: median_low(median(times.seconds[kind]) for times in well)
            for kind in ("write", "read")
        }
        usual_s = max(usual_s or 0.0, usual["write"])
        for times in there:
            if times.failed:
                unsure.append(f"{times.host} cannot write {folder}: {times.failed}")
            elif slow := [kind for kind in usual if _slow(times, kind, usual[kind], threshold)]:
                culprits.append(_culprit(times, slow, usual))
    if not looked:
        why = "; ".join(unsure) or "there is one host"
        return Outcome(Answer.UNKNOWN, (), f"{why}: nothing to compare it with", 1)
    clear = f"no disk of {looked} hosts takes {threshold:g} times as long as usual"
    return conclude(culprits, unsure, clear, 1, usual_s)


def unwritable(every: Sequence[DiskTimes]) -> list[DiskTimes]:
    """Hosts that cannot write a folder which others can."""
    written = {times.folder for times in every if not times.failed}
    return [times for times in every if times.failed and times.folder in written]


def _slow(times: DiskTimes, kind: str, usual: float, threshold: float) -> bool:
    quickest = min(times.seconds[kind])
    return quickest >= threshold * usual and quickest - usual >= _LEAST_S


def _culprit(disk: DiskTimes, slow: Sequence[str], usual: Mapping[str, float]) -> Straggler:
    times = max(median(disk.seconds[kind]) / usual[kind] for kind in slow)
    done = {"write": "writing", "read": "reading"}
    numbers = "; ".join(
        f"{done[kind]} a file in {disk.folder} took {min(disk.seconds[kind]):.3f} to"
        f" {max(disk.seconds[kind]):.3f} s, {usual[kind]:.3f} s is usual"
        for kind in slow
    )
    remedy = (
        f"see what else writes there and how the disk is: `iostat -x 1`, `dmesg`, `smartctl -a` on {disk.host}, and of"
        f" a shared file system its client's paths; until then, leave {disk.host} out of the job"
    )
    return Straggler(Kind.DISK, (disk.host,), times, numbers, remedy, (disk.rank,))
