"""What really happens in a row: the program is run, and judged by what its ranks printed of themselves.

fairlead's own proof has no say here. A rank runs on the planned MPI when the file that it maps under an MPI's name is the staged one,
by inode, when no other MPI is mapped, no library of an MPI twice, and the numbers are right.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system import hosts
from tests.system.corpus import trees
from tests.system.corpus.table import HOSTS, IMAGES, Row

from fairlead.base.paths import cache_dir
from fairlead.doctor.install.apptainer import install_apptainer
from fairlead.elf.patchelf import find_patchelf

RANKS = 2
_STEM = re.compile(r"/(lib[\w+-]*?)(-[0-9a-f]{8})?\.so")
# Of these a process may have one each: an MPI, its parts, and what opens modules of its own.
_ONE_EACH = {
    "libopen-pal", "libopen-rte", "libopen_mpi", "libucp", "libuct", "libucs", "libfabric", "libpmix", "libmpi", "libmpich",
    "libmpi_abi",
}  # fmt: skip


@dataclass(frozen=True)
class Rank:
    """What a rank printed.

    Attributes:
        maps: path and inode of each file that it has mapped.
    """

    rank: int
    size: int
    total: float
    version: str
    maps: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Run:
    """One ``fairlead run`` of a row.

    Attributes:
        answer: the JSON object.
    """

    code: int
    answer: dict[str, Any]
    ranks: tuple[Rank, ...]
    text: str


@dataclass(frozen=True)
class User:
    """An ordinary user, and what an administrator gives: Python, packages, Apptainer."""

    uid: int
    home: Path
    shared: Path


@contextmanager
def user() -> Iterator[User]:
    """A new account; what it needs lies in a folder that it can read."""
    shared = Path(tempfile.mkdtemp(prefix="fairlead-corpus-"))
    shared.chmod(0o755)
    try:
        with hosts.account("corpus", shared) as (name, home):
            install_apptainer({**os.environ, "XDG_DATA_HOME": str(shared)})
            (shared / "bin").mkdir()
            shutil.copy(find_patchelf() or "", shared / "bin/patchelf")
            for place in _shown(shared):
                place.mkdir()
            subprocess.run(["chown", "-R", name, home], check=True)
            yield User(home.stat().st_uid, home, shared)
    finally:
        shutil.rmtree(shared, ignore_errors=True)


def run(row: Row, who: User | None, *more: str, limit_s: float = 240) -> Run:
    """Runs a row's program by ``fairlead run``, as root, or as ``who``.

    Raises:
        subprocess.TimeoutExpired: it has not ended, which says nothing of the row on a busy machine.
    """
    prefix, launcher = trees.host(row.host)
    of = IMAGES[row.image]
    command = trees.command(of, row.family, row.program)
    base = who.home if who else cache_dir()
    output = Path(tempfile.mkdtemp(prefix="corpus.", dir=base))
    if who:
        os.chown(output, who.uid, who.uid)
    words = [
        "run",
        "--json",
        "-n",
        str(RANKS),
        "--output-dir",
        str(output / "ranks"),
        "--mpi",
        str(prefix),
        *more,
    ]
    words += ["--launcher", str(launcher)] if launcher else []
    words += [str(trees.image(row.image)), "--", *command]
    done = _started(words, who, limit_s)
    try:
        answer = json.loads(done.stdout or "{}")
    except ValueError:
        answer = {}
    logs = sorted((output / "ranks").glob("*.log"))
    text = "".join(log.read_text(errors="replace") for log in logs)
    ranks = tuple(rank for log in logs for rank in reported(log.read_text(errors="replace")))
    shutil.rmtree(output)
    return Run(done.returncode, answer, ranks, text + done.stderr)


def _shown(shared: Path) -> dict[Path, Path]:
    """Where a user finds what is root's, and where it is: files of tests, the checkout, Python packages."""
    packages = Path(sysconfig.get_path("purelib")).resolve()
    return {shared / "kept": hosts.KEPT, shared / "code": hosts.ROOT, shared / "packages": packages}


def _started(
    words: Sequence[str], who: User | None, limit_s: float
) -> subprocess.CompletedProcess[str]:
    if who is None:
        line = [sys.executable, "-m", "fairlead", *words]
        environ = {**os.environ, **hosts.AS_ROOT}
    else:
        # What belongs to root is shown where the user can go, to this command alone.
        kept, code, packages = _shown(who.shared)
        shown = [word.replace(str(hosts.KEPT), str(kept)) for word in words]
        variables = {
            "PATH": f"{who.shared}/bin:/usr/bin:/bin",
            "PYTHONPATH": f"{code}/runtime:{packages}",
            "FAIRLEAD_APPTAINER": f"{who.shared}/fairlead/apptainer/current/bin/apptainer",
        }
        python = f"/usr/bin/python3.{sys.version_info.minor}"
        inner = hosts.as_user(who.uid, who.home, variables, python, "-m", "fairlead", *shown)
        show = [
            f'mount --bind "{source}" "{place}"' for place, source in _shown(who.shared).items()
        ]
        script = " && ".join([*show, 'exec "$@"'])
        line, environ = ["unshare", "-m", "sh", "-c", script, "sh", *inner], dict(os.environ)
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=environ,
        stdin=subprocess.DEVNULL, cwd=who.home if who else None,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # so that it ends its ranks
        process.communicate(timeout=60)
        raise
    return subprocess.CompletedProcess(line, process.returncode, out, err)


def reported(log: str) -> Iterator[Rank]:
    """The ranks in a log."""
    lines = [
        line.removeprefix("corpus ") for line in log.splitlines() if line.startswith("corpus ")
    ]
    while "end" in lines:
        at = lines.index("end")
        part, lines = lines[:at], lines[at + 1 :]
        values = dict(line.split(" ", 1) for line in part if not line.startswith("map "))
        maps = [line.split(" ", 2)[1:] for line in part if line.startswith("map ")]
        if not values.keys() >= {"rank", "size", "sum"}:
            continue  # several ranks of a job within a rank have written at once
        yield Rank(
            int(values["rank"]),
            int(values["size"]),
            float(values["sum"]),
            " ".join(values.get("version", "").split()),
            tuple(dict.fromkeys((path, int(inode)) for inode, path in maps)),
        )


def wrong(row: Row, done: Run) -> str:
    """Why a row does not work; empty if it does."""
    if sorted(rank.rank for rank in done.ranks) != list(range(RANKS)) or any(
        r.size != RANKS for r in done.ranks
    ):
        worlds = [f"rank {rank.rank} of {rank.size}" for rank in done.ranks]
        return f"not one world: {', '.join(worlds) or ended(done)}"
    for rank in done.ranks:
        if reason := _of_rank(row, rank):
            return reason
    return "" if done.code == 0 else f"right, and then {ended(done)}"


def _of_rank(row: Row, rank: Rank) -> str:
    if rank.total != RANKS * (RANKS + 1) / 2:
        return f"a sum of {rank.total}"
    if rank.version != "unknown" and HOSTS[row.host].version not in rank.version:
        return f"runs on {rank.version}"
    staged = _staged()
    mpis = [(path, inode) for path, inode in rank.maps if _is_mpi(path)]
    planned = [path for path, inode in mpis if inode in staged]
    others = [path for path, inode in mpis if inode not in staged]
    if others or not planned:
        return f"maps {' and '.join(others) or 'no MPI of the host'}"
    seen: dict[str, int] = {}
    for path, inode in rank.maps:
        found = _STEM.search(path)
        if found and found[1] in _ONE_EACH and seen.setdefault(found[1], inode) != inode:
            return f"maps two {found[1]}, one of them {path}"
    return ""


def _is_mpi(path: str) -> bool:
    """By its name, as the corpus gives them; a renamed one among them."""
    return bool(
        re.search(r"/lib(mpi|mpich|mpi_abi\w*|vendormpi\w*|open_mpi)(-[0-9a-f]{8})?\.so", path)
    )


def _staged() -> frozenset[int]:
    """The inodes of all libraries that fairlead has staged, for any user."""
    folders = [
        cache_dir() / "stage",
        *Path(tempfile.gettempdir()).glob("fairlead-corpus-*/fairlead-*/.cache/fairlead/stage"),
    ]
    return frozenset(
        f.stat().st_ino for folder in folders if folder.is_dir() for f in folder.glob("*/lib/*.so*")
    )


def ended(done: Run) -> str:
    """How a run without ranks ended: the exit code, and the line that explains it."""
    said = re.findall(
        r"^.*(?:undefined symbol|symbol lookup error|cannot open shared object|version `GLIBC\S+ not found|Segmentation|"
        r"signal|Aborted|no end within|ImportError|FATAL:).*$",
        done.text,
        re.MULTILINE,
    )
    found = done.answer.get("findings", ())
    words = said[:1] or [f["what"] for f in found if f.get("severity") == "error"][:1]
    shown = f"exit {done.code}: {words[0] if words else 'no word'}"
    shown = re.sub(r"/\S*?/fairlead-corpus-\w+", "", shown.replace(str(hosts.KEPT), ""))
    return " ".join(shown.split())[:240]
