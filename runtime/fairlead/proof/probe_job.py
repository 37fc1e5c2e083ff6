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
from fairlead.launch.node_check import Opened
from fairlead.launch.run_folder import new_run_folder
from fairlead.launchers import registry as launchers
from fairlead.mpi.cross_abi import is_python
from fairlead.proof.preload import reports
from fairlead.proof.verdict import Proof, RankProof, judged, mpi_program
from fairlead.swap.model import RUN_MOUNT, Bind, Plan
from fairlead.swap.reach import on_path, reach
from fairlead.swap.staging import planned_inode


def probe(
    plan: Plan,
    ranks: int,
    cache: Path,
    environ: Mapping[str, str],
    limit_s: float,
    env: Mapping[str, str] | None = None,
    image: Opened | None = None,
) -> Proof:
    """Runs the probe job.

    Args:
        env: the user's variables for the container: they can lead to another MPI.
        image: what each node has to find where the engine opens the image.
    Raises:
        FairleadError: exit code 124 when it hangs, 123 when engine or launcher cannot start it.
            What a rank saw is never an exception: it is in ``Proof.findings``.
    """
    begun = time.monotonic()
    folder = new_run_folder(cache)
    shutil.copyfile(prove.__file__, folder / "prove.py")
    app, python = mpi_program(plan), _python(plan)
    with (folder / "spec.json").open("w", encoding="utf-8") as stream:
        json.dump(
            {"out": RUN_MOUNT, "via": _via(plan, python, app), "names": plan.names, "app": app},
            stream,
        )
    line = launching.command_line(
        plan,
        (python, "-I", f"{RUN_MOUNT}/prove.py", f"{RUN_MOUNT}/spec.json"),
        ranks,
        binds=(Bind(str(folder), RUN_MOUNT),),
        env=env,
    )
    line = replace(line, image=image)
    hung: FairleadError | None = None
    with (folder / "output").open("w+b") as output:
        try:
            launching.launch(
                line,
                folder,
                limits=launching.Limits(wall_s=limit_s),
                streams=launching.Streams(output, output, subprocess.DEVNULL),
                environ=environ,
            )
        except FairleadError as exc:
            if exc.code is not ExitCode.WATCHDOG:
                raise
            hung = exc
    ranks_seen = [
        r for p in reports(folder, "proof") for r in json.loads(p.read_text("utf-8"))["ranks"]
    ]
    words = _last_words(folder)
    if hung:
        raise FairleadError(_hang(folder, ranks, limit_s, words, plan.image), ExitCode.WATCHDOG)
    if not ranks_seen or any("error" in r for r in ranks_seen):
        finding = diagnose(words + "\n".join(str(r.get("error", "")) for r in ranks_seen), plan)
        code = (
            ExitCode.LAUNCH_FAILED
            if finding.check in ("engine", "launcher", "launcher-root")
            else ExitCode.PROOF_FAILED
        )
        raise FairleadError(finding, code)
    inode = planned_inode(plan, cache)
    shutil.rmtree(folder, ignore_errors=True)
    proofs = [_rank_proof(observed) for observed in ranks_seen]
    return judged(plan, ranks, inode, proofs, time.monotonic() - begun)


def _python(plan: Plan) -> str:
    """The command's own Python, as of a virtual environment, for another has other packages; else the one in PATH."""
    programs = reach(plan.facts, plan.request).programs
    pythons = (path for program in programs for path in program.chain if is_python(path))
    return next(pythons, "python3")


def _via(plan: Plan, python: str, app: str) -> str:
    """Python programs meet MPI through mpi4py, which searches on its own; others by name.

    What has an mpi4py of its own, as a bundle has, need not share it with the probe's Python.
    """
    wanted = any("/mpi4py/MPI." in e.path for e in plan.consumers)
    place = on_path(plan.facts, plan.request, python)
    own = reach(plan.facts, replace(plan.request, apps=(place,), command=()))
    has_mpi4py = wanted and any("/mpi4py/MPI." in e.path for e in own.files)
    return "mpi4py" if has_mpi4py and not app else "dlopen"


def _last_words(folder: Path) -> str:
    """What the launch printed: its beginning, where engines complain, and its end."""
    parts = [folder / "output", *sorted(folder.glob("said.*"))]
    texts = [p.read_text("utf-8", "replace") for p in parts if p.is_file()]
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
        p.name.partition(".")[2]: json.loads(p.read_text("utf-8"))
        for p in reports(folder, "started")
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
    tail = [line for line in words.strip().splitlines() if " INFO " not in line][-3:]
    return error(
        "watchdog-probe",
        limit_s=limit_s,
        started_count=len(started),
        ranks=ranks,
        why="\n".join([*parts, *tail]),
        image=image,
    )


_CAUSES: Sequence[tuple[str, str]] = (
    # (pattern, message); what its groups match are the fields m1, m2 …
    (
        r"(unsupported PMI version \w+|PMIx server unreachable|PMI_Init returned \S+).*",
        "probe-launcher-family-mismatch",
    ),
    (
        r"(?:prterun|mpirun|mpiexec|orterun) has detected an attempt to run as root",
        "probe-launcher-root",
    ),
    (r"version `(GLIBC\w*_[\d.]+)' not found \(required by ([^)]+)\)", "probe-glibc-too-old"),
    (r"(\S+): cannot open shared object file", "closure-missing-library"),
    (r"(undefined symbol: \S+)", "symbols-missing"),
    (r'"python3": executable file not found|python3: (?:command )?not found', "no-python"),
    (r"ModuleNotFoundError: No module named '(\w+)'", "no-python-module"),
    (r"((?:process_vm_readv|/proc/\d+/fd)\S*.*)", "namespaces-separate"),
    (r"unknown (?:shorthand )?flag: (.*)", "engine-unknown-option"),
    (
        r"(?:^|\n)(?:Error: |ch-run\[\d+\]: error: |/usr/bin/env: |runc create failed: )(.*)",
        "engine-cannot-start-image",
    ),
    (r"FATAL:\s+(.*)", "engine-cannot-start-image"),
)


def diagnose(words: str, plan: Plan) -> Finding:
    """The cause behind a probe that reported nothing, from what was printed."""
    objection = launchers.objection(plan.launcher, plan.request.shape, 0, {})
    if objection and "attempt to run as root" in words:  # known before the launch, which was forced
        return objection
    tail = "\n".join(words.strip().splitlines()[-6:])
    for pattern, message in _CAUSES:
        if match := re.search(pattern, words):
            groups = {f"m{number}": text or "" for number, text in enumerate(match.groups(), 1)}
            return error(message, launcher=plan.launcher.path, image=plan.image, **groups)
    return error("launcher-no-report", launcher_path=plan.launcher.path, tail=tail)
