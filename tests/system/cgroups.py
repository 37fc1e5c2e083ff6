"""Control groups that hold processes back: a processor by its quota, a disk by its rate. Of version 1 or 2, whichever
this machine gives; only root makes them.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

_PERIOD_US = 100_000


@contextmanager
def processor(quota: float) -> Iterator[Path]:
    """A group whose processes together get so many cores."""
    share = int(quota * _PERIOD_US)
    ways = (
        ("/sys/fs/cgroup/cpu", {"cpu.cfs_quota_us": f"{share}"}),
        ("/sys/fs/cgroup", {"cpu.max": f"{share} {_PERIOD_US}"}),
    )
    with _group(ways) as group:
        yield group


@contextmanager
def disk(path: Path, bytes_per_s: int) -> Iterator[Path]:
    """A group whose processes read and write the disk of ``path`` no faster."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    kinds = ("read", "write")
    ways = (
        ("/sys/fs/cgroup/blkio", {f"blkio.throttle.{k}_bps_device": f"{number} {bytes_per_s}" for k in kinds}),
        ("/sys/fs/cgroup", {"io.max": f"{number} rbps={bytes_per_s} wbps={bytes_per_s}"}),
    )  # fmt: skip
    with _group(ways) as group:
        yield group


@contextmanager
def inside(group: Path, process: int) -> Iterator[None]:
    """A process and those it starts from now on are in the group; at the end it is out of it again."""
    (group / "cgroup.procs").write_text(str(process))
    try:
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(process))


@contextmanager
def _group(ways: Sequence[tuple[str, dict[str, str]]]) -> Iterator[Path]:
    name = f"fairlead-test-{uuid.uuid4().hex[:8]}"
    for base, files in ways:
        if not Path(base, "cgroup.procs").exists():
            continue
        group = Path(base, name)
        group.mkdir()
        try:
            if all((group / file).exists() for file in files):
                for file, words in files.items():
                    (group / file).write_text(words)
                yield group
                return
        finally:
            group.rmdir()
    pytest.skip(f"no control group with {' or '.join(next(iter(f)) for _, f in ways)} here")
