"""The probe job: the run's own launcher, engine and plan, with ``prove.py`` as every rank.

It proves where no witness can, and finds the cause when a launch failed before MPI had started.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead import prove
from fairlead.base.errors import ExitCode, FairleadError, Finding, error
from fairlead.launch import launch as launching
from fairlead.proof.verdict import Proof, RankProof, judge, mpi_program
from fairlead.swap.model import RUN_MOUNT, Bind, Plan
from fairlead.swap.staging import planned_inode


def probe(
    plan: Plan,
    ranks: int,
    cache: Path,
    environ: Mapping[str, str],
    limit_s: float,
    env: Mapping[str, str] | None = None,
) -> Proof:
    """Runs the probe job.

    Args:
        env: the user's variables for the container: they can lead to another MPI.
    Raises:
        FairleadError: exit code 124 when it hangs, 123 when engine or launcher cannot start it.
            What a rank saw is never an exception: it is in ``Proof.findings``.
    """
    begun = time.monotonic()
    folder = launching.new_run_folder(cache)
    shutil.copyfile(prove.__file__, folder / "prove.py")
    app = mpi_program(plan)
    with (folder / "spec.json").open("w") as stream:
        json.dump(
            {"out": RUN_MOUNT, "via": _via(plan, app), "names": plan.names, "app": app}, stream
        )
    line = launching.command_line(
        plan,
        ("python3", "-I", f"{RUN_MOUNT}/prove.py", f"{RUN_MOUNT}/spec.json"),
        ranks,
        binds=(Bind(str(folder), RUN_MOUNT),),
        env=env,
    )
    hung: FairleadError | None = None
    with (folder / "output").open("w+b") as output:
        try:
            launching.launch(
                line,
                folder,
                limit_s=limit_s,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                environ=environ,
            )
        except FairleadError as exc:
            if exc.code is not ExitCode.WATCHDOG:
                raise
            hung = exc
    reports = _reports(folder)
    words = _last_words(folder)
    if hung:
        raise FairleadError(_hang(folder, ranks, limit_s, words, plan.image), ExitCode.WATCHDOG)
    if not reports or any("error" in r for r in reports):
        finding = diagnose(words + "\n".join(str(r.get("error", "")) for r in reports), plan)
        code = (
            ExitCode.LAUNCH_FAILED
            if finding.check in ("engine", "launcher", "launcher-root")
            else ExitCode.PROOF_FAILED
        )
        raise FairleadError(finding, code)
    inode = planned_inode(plan, cache)
    proofs = tuple(sorted(map(_rank_proof, reports), key=lambda p: (p.rank, p.host)))
    proof = Proof(ranks, plan.planned_file, inode, plan.planned_title, proofs, (), 0.0)
    findings = judge(plan, proof)
    shutil.rmtree(folder, ignore_errors=True)
    return replace(proof, findings=findings, seconds=time.monotonic() - begun)


def _via(plan: Plan, app: str) -> str:
    """Python programs meet MPI through mpi4py, which searches on its own; others by name."""
    has_mpi4py = any("/mpi4py/MPI." in e.path for e in plan.consumers)
    return "mpi4py" if has_mpi4py and not app else "dlopen"


def _reports(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("proof.*")):
        if not path.name.endswith(".partial"):
            found += json.loads(path.read_text())["ranks"]
    return found


def _last_words(folder: Path) -> str:
    """What the launch printed: its beginning, where engines complain, and its end."""
    parts = [folder / "output", *sorted(folder.glob("said.*"))]
    texts = [p.read_text(errors="replace") for p in parts if p.is_file()]
    return "\n".join(t if len(t) < 6000 else f"{t[:2000]}\n{t[-4000:]}" for t in texts)


def _rank_proof(report: Mapping[str, Any]) -> RankProof:
    mapped = report["mapped"]
    app = report.get("app", {}).get("mpi") or []
    first: Mapping[str, Any] = mapped[0] if mapped else {"path": "", "inode": 0}
    return RankProof(
        rank=report["rank"],
        size=report["size"],
        host=report["host"],
        mpi_path=first["path"],
        mpi_inode=first["inode"],
        mpi_count=len(mapped),
        version=_first_line(report["version"]),
        netmod=report["transport"]["netmod"],
        providers=tuple(report["transport"]["providers"]),
        ring_ok=report["ring_ok"],
        namespaces=report["namespaces"],
        library_path=report["library_path"],
        app_mpi=", ".join(a["path"] for a in app),
    )


def _first_line(version: str) -> str:
    """``MPICH Version:      5.0.2`` as ``MPICH Version: 5.0.2``."""
    return re.sub(r"\s+", " ", version.splitlines()[0] if version else "").strip()


def _hang(folder: Path, ranks: int, limit_s: float, words: str, image: str) -> Finding:
    started = {
        p.name.partition(".")[2]: json.loads(p.read_text())
        for p in folder.glob("started.*")
        if not p.name.endswith(".partial")
    }
    inside = sorted((r for r, s in started.items() if "rank" not in s), key=str)
    missing = sorted(set(map(str, range(ranks))) - set(started), key=int)
    parts = []
    if missing:
        parts.append(f"rank {', '.join(missing[:8])} never started")
    if inside:
        parts.append(f"rank {', '.join(inside[:8])} started and did not leave MPI_Init")
    if not missing and not inside:
        parts.append("every rank started, and did not leave MPI_Finalize")
    said = [line for line in words.strip().splitlines() if " INFO " not in line]
    tail = said[-3:]
    return error(
        f"the probe did not end within {limit_s:g} s; everything was killed",
        where=f"{len(started)} of {ranks} ranks started",
        why="\n".join([*parts, *tail]),
        remedy=f"fairlead preflight {image}; more time: --watchdog SECONDS",
        check="watchdog",
    )


_CAUSES: Sequence[tuple[str, str, str, str, str]] = (
    # (pattern, what, why, remedy, check); \1 … are the pattern's groups
    (
        r"(unsupported PMI version \w+|PMIx server unreachable|PMI_Init returned \S+).*",
        "the launcher cannot connect the ranks of this MPI",
        r"the MPI says: \1",
        "leave out --launcher, or name the mpiexec that belongs to the MPI that is mapped",
        "launcher-family",
    ),
    (
        r"(?:prterun|mpirun|mpiexec|orterun) has detected an attempt to run as root",
        "Open MPI's launcher starts nothing for root",
        "it was not told that root is meant",
        "be an ordinary user; where root is meant: export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        "launcher-root",
    ),
    (
        r"version `(GLIBC\w*_[\d.]+)' not found \(required by ([^)]+)\)",
        "the host's MPI needs a newer C or C++ library than the image has",
        r"\2 needs \1",
        "build the image on a newer distribution, or name another host MPI with `--mpi PREFIX`",
        "glibc",
    ),
    (
        r"(\S+): cannot open shared object file",
        "a library behind the MPI is missing in the container",
        r"\1 was not found",
        "`fairlead explain IMAGE` lists what is staged; `fairlead preflight IMAGE` says what is missing",
        "closure",
    ),
    (
        r"(undefined symbol: \S+)",
        "the mapped MPI lacks a function",
        r"\1",
        "fairlead preflight IMAGE",
        "symbols",
    ),
    (
        r'"python3": executable file not found|python3: (?:command )?not found',
        "the image has no python3, which the proof runs in",
        "the probe is a Python program",
        "add python3 to the image",
        "no-python",
    ),
    (
        r"ModuleNotFoundError: No module named '(\w+)'",
        "the image's Python is too small for the proof",
        r"it has no module `\1`: a part of the standard library is left out, as in python3-minimal",
        "add python3 to the image",
        "no-python",
    ),
    (
        r"((?:process_vm_readv|/proc/\d+/fd)\S*.*)",
        "the ranks may not read each other's memory",
        r"\1",
        "run with one user namespace for all (setuid Apptainer), or let fairlead choose the options",
        "namespaces",
    ),
    (
        r"unknown (?:shorthand )?flag: (.*)",
        "the container engine does not know an option",
        r"\1",
        "leave out that --engine-arg; the engine's own --help lists what there is",
        "engine",
    ),
    (
        r"(?:^|\n)(?:Error: |ch-run\[\d+\]: error: |/usr/bin/env: |runc create failed: )(.*)",
        "the container engine could not start the image",
        r"\1",
        "fairlead doctor engine; `fairlead run --dry-run` prints the line to try by hand",
        "engine",
    ),
    (
        r"FATAL:\s+(.*)",
        "the container engine could not start the image",
        r"\1",
        "fairlead doctor engine; `fairlead run --dry-run` prints the line to try by hand",
        "engine",
    ),
)


def diagnose(words: str, plan: Plan) -> Finding:
    """The cause behind a probe that reported nothing, from what was printed."""
    tail = "\n".join(line for line in words.strip().splitlines()[-6:])
    for pattern, what, why, remedy, check in _CAUSES:
        if match := re.search(pattern, words):
            where = plan.launcher.path if check == "launcher-root" else plan.image
            return error(what, where=where, why=match.expand(why), remedy=remedy, check=check)
    return error(
        "the ranks did not report",
        where=plan.launcher.path,
        why=tail or "they printed nothing",
        remedy="`fairlead run --dry-run …` prints the line to try by hand",
        check="launcher",
    )
