"""What a job's start costs: system calls on files of a rank, a no-op on many ranks, and where Python's modules lie.

Files a rank: two launches of different size are traced (strace), so what they have in common is left out. Ranks share this
machine's cores. The image is mounted by each rank's engine (by the kernel, as Apptainer does it for root), once for all by
squashfuse or by the kernel, or unpacked in a folder; or its modules are packed in one mapped file. A cold cache is one that
the kernel was asked to drop. Root measures.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.result import (
    FAIRLEAD,
    PACKAGE,
    Benchmark,
    Compared,
    Result,
    absolute,
    alternate,
    compare,
    seconds_of,
)
from benchmarks.sides import PROGRAMS, image
from fairlead import native
from fairlead.base.paths import cache_dir
from fairlead.image.sif import copy_object, read_sif
from fairlead.launch.launch import command_line
from fairlead.session.model import Choices
from fairlead.session.prepare import prepare
from fairlead.swap import staging
from fairlead.swap.model import Bind, Request
from fairlead_build.build import build

NOOP = ("python3", "-c", "from mpi4py import MPI")
RANKS = (2, 64, 256, 1024)
IMPORTS = {"tensorflow": "import tensorflow", "pytorch": "import torch"}
ROUNDS = 2
# Without this much a rank, the machine would swap or kill: the size is left out.
_RANK_BYTES = 30 << 20
_CALLS = (
    "open,openat,stat,lstat,newfstatat,statx,access,faccessat,faccessat2,readlink,readlinkat,read,pread64,"
    "clone,clone3,fork,vfork"
)
_KERNEL = ("/proc/", "/sys/", "/dev/")
_SITE = "/opt/python/lib/python3.11/site-packages"


def counts(ranks: int, argv: Callable[[int], Sequence[str]]) -> dict[str, float]:
    """Of each rank more: files opened, looked at in vain or in general, and bytes read from them.

    Args:
        ranks: of the smaller launch; the other has twice as many.
    """
    few, many = (_traced(argv(number)) for number in (ranks, 2 * ranks))
    return {name: (many[name] - few[name]) / ranks for name in few}


def _traced(argv: Sequence[str]) -> dict[str, int]:
    """The counts of all that a command starts; what it does itself, however long it watches, is left out."""
    with tempfile.TemporaryDirectory() as folder:
        trace = [
            "strace",
            "-ff",
            "-qq",
            "-y",
            "-s",
            "200",
            "-e",
            f"trace={_CALLS}",
            "-o",
            f"{folder}/log",
        ]
        done = subprocess.run([*trace, *argv], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{argv}: {done.stderr[-2000:]}")
        logs = {log.suffix[1:]: log.read_text(errors="replace") for log in Path(folder).iterdir()}
    made = {
        pid: re.findall(r"^(?:clone3?|v?fork)\((.*)\) += (\d+)$", text, re.M)
        for pid, text in logs.items()
    }
    own = set(logs) - {child for children in made.values() for _, child in children}
    while threads := {t for pid in own for words, t in made[pid] if "CLONE_THREAD" in words} - own:
        own |= threads
    totals = {"opens": 0, "looks": 0, "bytes": 0}
    for pid in set(logs) - own:
        for line in logs[pid].splitlines():
            for name, amount in _counted(line):
                totals[name] += amount
    return totals


def _counted(line: str) -> Iterator[tuple[str, int]]:
    """What a line of strace adds to the counts; file systems of the kernel's own cost nobody else anything."""
    match = re.match(r"(\w+)\((.*)\) += (-?\d+)", line)
    if not match:
        return
    call, words, code = match[1], match[2], int(match[3])
    if call in ("read", "pread64"):
        file = re.match(r"\d+<(/[^>]*)>", words)
        if file and code > 0 and not file[1].startswith(_KERNEL):
            yield "bytes", code
        return
    path = re.search(r'"([^"]*)"', words)
    if path is None or path[1].startswith(_KERNEL):
        return
    yield ("opens" if call.startswith("open") and code >= 0 else "looks"), 1


def measure(ranks: Sequence[int] = RANKS, rounds: int = ROUNDS) -> Result:
    """Counts, then ranks, then places of modules."""
    rows = [*_counts(), *_many(ranks, rounds)]
    for recipe, code in IMPORTS.items():
        rows += _places(recipe, code, rounds)
    what = "starting a job: system calls on files, a no-op on many ranks of one machine, an import on 2 ranks"
    return Result(
        "job-start",
        what,
        "the same line without fairlead; the image as each rank mounts it",
        tuple(rows),
    )


def run_argv(ranks: int) -> list[str]:
    """`fairlead run` of a program that only starts MPI."""
    # So many on a machine are refused unless it is named.
    here = ["--hosts", "localhost"] if ranks > 64 else []
    return [*FAIRLEAD, "run", "-q", "-n", str(ranks), *here, "mpi-base", "--", *NOOP]


def _counts() -> list[Compared]:
    image("mpi-base")
    bare = _bare("mpi-base", NOOP)
    seconds_of(run_argv(2))
    ours, theirs = (
        counts(2, run_argv),
        counts(2, lambda n: ["env", *_assigned(bare(n)[1]), *bare(n)[0]]),
    )
    units = {"opens": "files", "looks": "calls", "bytes": "B"}
    titles = {
        "opens": "files opened",
        "looks": "stat, access and failed opens",
        "bytes": "bytes read",
    }
    return [
        compare(
            f"a rank more of a no-op: {titles[name]}",
            [ours[name]],
            [theirs[name]],
            None,
            kind="difference",
            unit=unit,
        )
        for name, unit in units.items()
    ] + [
        absolute(f"a rank more of a no-op, in all: {titles[name]}", [ours[name]], None, unit)
        for name, unit in units.items()
    ]


def _assigned(environ: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environ.items() if os.environ.get(name) != value]


def _bare(
    recipe: str, command: Sequence[str], binds: Sequence[Path] = (), opened: str = ""
) -> Callable[[int], Any]:
    """The line that `fairlead run` launches, and its environment, by a number of ranks.

    Args:
        opened: what the engine opens instead of the image.
    """
    sif = image(recipe)
    plan = prepare(sif, Choices(), Request(ranks=2, command=tuple(command))).plan
    native.ensure(native.WITNESS, cache_dir())
    staging.ensure(plan, cache_dir())
    more = [Bind(str(place), str(place)) for place in binds]

    def line(ranks: int) -> tuple[list[str], dict[str, str]]:
        made = command_line(plan, command, ranks, more)
        argv = [opened if opened and word == sif else word for word in made.argv]
        return argv, made.environment(dict(os.environ))

    return line


def _many(ranks: Sequence[int], rounds: int) -> list[Compared]:
    bare, rows = _bare("mpi-base", NOOP), []
    for number in ranks:
        available = _available()
        if number * _RANK_BYTES > available:
            print(f"  {number} ranks: left out, {available >> 30} GiB are free", flush=True)
            continue
        sides: dict[str, Callable[[], float]] = {
            "ours": partial(seconds_of, run_argv(number)),
            "bare": lambda number=number: seconds_of(*bare(number)),  # type: ignore[misc]
        }
        times = alternate(rounds if number < 256 else 1, sides)
        name = f"a no-op on {number} ranks: fairlead run"
        rows += [
            compare(name, times["ours"], times["bare"], None, kind="difference"),
            absolute(f"{name}, in all", times["ours"], None),
        ]
    return rows


def _available() -> int:
    """Bytes that fit without swapping (proc_meminfo(5))."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))) << 10


def _places(recipe: str, code: str, rounds: int) -> list[Compared]:
    """An import on 2 ranks, warm and cold, by where the image is."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-", dir=cache_dir()) as name:
        root = Path(name)
        root.chmod(0o755)
        command = ("python3", "-c", code)
        pack = root / "modules.pack"
        packed = ("python3", str(PROGRAMS / "import_pack.py"))
        argv, environ = _bare(recipe, (*packed, "pack", _SITE, str(pack)), (root, PACKAGE))(1)
        seconds_of(argv, environ)
        build(recipe, formats=("sandbox",), output=root / "folder")
        folder = next(path.parent for path in root.glob("folder/**/.fairlead"))
        with _mounted(recipe, root) as mounts:
            lines = {
                "each rank mounts it": _bare(recipe, command),
                "mounted once by squashfuse": _bare(recipe, command, (), str(mounts["squashfuse"])),
                "mounted once by the kernel": _bare(recipe, command, (), str(mounts["kernel"])),
                "unpacked": _bare(recipe, command, (), str(folder)),
                "each rank mounts it, modules in one file": _bare(
                    recipe, (*packed, "run", str(pack), code), (root, PACKAGE)
                ),
            }
            for state in ("warm", "cold"):
                sides = {key: partial(_start, line, state == "cold") for key, line in lines.items()}
                if state == "warm":
                    for side in sides.values():
                        side()
                times = alternate(rounds, sides)
                own = times["each rank mounts it"]
                rows.append(absolute(f"`{code}` on 2 ranks, {state}", own, None))
                rows += [
                    compare(f"… {state}, {key}", seconds, own, None)
                    for key, seconds in times.items()
                    if seconds is not own
                ]
    return rows


def _start(line: Callable[[int], Any], cold: bool) -> float:
    if cold:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    return seconds_of(*line(2))


@contextmanager
def _mounted(recipe: str, root: Path) -> Iterator[Mapping[str, Path]]:
    """The image, mounted once for all ranks: by squashfuse and by the kernel. As root."""
    sif = Path(image(recipe))
    bare = (
        root / "image.squashfs"
    )  # the engine has a loop device of the image, which the kernel does not share
    with bare.open("wb") as out:
        copy_object(sif, read_sif(sif).squashfs, out)
    places = {name: root / name for name in ("squashfuse", "kernel")}
    for place in places.values():
        place.mkdir()
    try:
        seconds_of(["squashfuse_ll", "-o", "ro,allow_other", bare, places["squashfuse"]])
        seconds_of(["mount", "-t", "squashfs", "-o", "ro,loop", bare, places["kernel"]])
        yield places
    finally:
        for place in places.values():
            subprocess.run(["umount", place], check=False)


BENCHMARKS = (Benchmark("job-start", 156, measure),)
