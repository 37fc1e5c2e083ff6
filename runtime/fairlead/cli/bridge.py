"""``fairlead bridge``: ranks that compute on matrices of Spark, Dask and pandas."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from fairlead.base.errors import ExitCode, FairleadError, fail
from fairlead.base.process import PYTHON
from fairlead.base.progress import human_bytes
from fairlead.bridge import library, sessions
from fairlead.bridge.serve import Server, Wanted, check_image
from fairlead.bridge.timings import Operation, Timings
from fairlead.cli import options, show
from fairlead.cli.declare import FOLDER, JSON, argument, declared, option
from fairlead.cli.group import Group
from fairlead.cli.run import announce
from fairlead.cli.run_report import RunReport
from fairlead.cli.screen import answer, columns, hand_over, print_findings, print_json, say, table
from fairlead.cli.within import Ready, plan_launch
from fairlead.launch.launch import CommandLine
from fairlead.proof.verdict import Proof
from fairlead.session.model import LaunchOptions, Prepared
from fairlead.session.prepare import needs_fairlead, refuse

SERVE_EPILOG = """\b
Examples:
  fairlead bridge serve -n 2 bridge
  fairlead bridge serve -n 64 --background analytics
  fairlead bridge serve -N 8 --ranks-per-node 8 --time 2h --interface 'hsn*' analytics
  fairlead bridge serve -n 4 --bind /scratch --tls --interface eth0 bridge

\b
In Python, with `pip install 'fairlead[bridge]'`:
  from fairlead.bridge import connect
  with connect() as mpi:
      u, s, v = mpi.linalg.svd(mpi.send(table), k=20)

\b
Exit codes: 0 stopped; 1 a rank failed; 121 refused; 122 the proof failed; 123 engine or launcher failed.
"""
_START_S = 600.0
_SHOWN = 20  # operations, the latest


@click.group(cls=Group)
def bridge() -> None:
    """Send tables of Spark, Dask and pandas to MPI ranks, and compute on them there.

    \b
    fairlead bridge serve -n 4 analytics    start a session
    fairlead bridge status                  sessions, their ranks, clients and matrices
    fairlead bridge libraries               the functions that clients can call
    fairlead bridge stop                    end a session
    """


@dataclass(frozen=True, kw_only=True)
class ServeFlags:
    """The options of ``fairlead bridge serve`` that no other group of options holds."""

    name: str = option("--name", "Name of the session.  [default: the image's]", default="")
    interface: tuple[str, ...] = option(
        "--interface NAME",
        "Trusted network interface to listen on, or a pattern such as 'hsn*'. Repeatable."
        "  [default: loopback on one node, the site's on several]",
    )
    tls: bool = option("--tls", "Encrypt connections; needed where no interface is trusted.")
    memory: float = option(
        "--memory SHARE",
        "Share of a node's free memory for matrices.",
        default=0.6,
        type=click.FloatRange(0, 1, min_open=True),
    )
    keep: float = option(
        "--keep SECONDS",
        "How long the matrices of a client outlive it.",
        default=600.0,
        type=click.FloatRange(0),
    )
    env: tuple[str, ...] = options.ENV
    watchdog: float | None = options.WATCHDOG
    background: bool = option("--background", "Return when clients can connect.")
    output: Path | None = option(
        "-o --output",
        "Folder for a report of the session: report.html and report.json.",
        type=FOLDER,
    )
    force: bool = option("--force", "Continue when the checks refuse; the proof still decides.")
    timeline_file: str = options.TIMELINE
    quiet: bool = option("-q --quiet", "Print only errors.")
    dry_run: bool = False
    as_json: bool = JSON

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.name, self.interface, self.tls, self.memory, self.keep)


@bridge.command("serve", epilog=SERVE_EPILOG)
@declared
def serve(
    asked: options.Placement, planning: options.Planning, flags: ServeFlags, image: str
) -> int:
    """Start ranks in IMAGE on the host's MPI, and serve clients until the session is stopped.

    IMAGE is the name of a built recipe, a .sif or .squashfs file, or a folder; it needs NumPy, SciPy, pyarrow, mpi4py
    and fairlead. A file that only you can read tells your clients where the ranks are; nobody else can connect.
    """
    if flags.background:
        return _in_background(flags)
    variables = options.variables(flags.env)
    ready = plan_launch(
        image, asked, planning, flags, command=("python3",), variables=variables, quiet=flags.quiet
    )
    prepared = ready.prepared
    if lacking := tuple(needs_fairlead(prepared.image, "its ranks")):
        raise FairleadError(lacking, ExitCode.PREFLIGHT_REFUSED)
    # A search path of the user's may lead to packages that are not the image's.
    if not flags.force and "PYTHONPATH" not in variables:
        check_image(prepared.image)
    if prepared.refused and not flags.force:
        raise refuse(prepared)
    if not flags.quiet:
        announce(prepared)
    report = _reporting(flags, prepared, image)
    with Server(flags.wanted, image) as server, report.of_failures() if report else nullcontext():
        _served(server, ready, flags, report)
    if not flags.quiet:
        say(f"session {server.folder.name} was stopped")
    return ExitCode.DONE


def _served(server: Server, ready: Ready, flags: ServeFlags, report: RunReport | None) -> None:
    """Serves clients until the session is stopped."""

    def show_ready() -> None:
        session = sessions.read(server.folder)
        if flags.as_json:
            print_json("bridge-serve", _session_json(session))
        elif not flags.quiet:
            say(
                f"session {session.name}: {len(session.endpoints)} ranks are ready; connect() in Python, Ctrl-C ends it"
            )

    def show_start(line: CommandLine, folder: Path) -> None:
        if report:
            report.started(line, folder)

    if report:
        report.served(server.folder)
    how = LaunchOptions(
        on_proof=partial(_show_proof, quiet=flags.quiet, report=report),
        on_finding=lambda finding: print_findings([finding]), on_start=show_start,
        allocation=ready.allocation, limit_s=flags.watchdog, env=options.variables(flags.env),
        progress=ready.progress, stdout=sys.stderr.fileno(), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    hand_over(to_ranks=True)
    try:
        server.serve(ready.prepared, ready.shape.ranks, how, show_ready)
    finally:
        hand_over(to_ranks=False)
    if report:
        say(f"report: {report.write(ExitCode.DONE, ())[0]}")


def _reporting(flags: ServeFlags, prepared: Prepared, image: str) -> RunReport | None:
    if not flags.output:
        return None
    context = click.get_current_context()
    words = ["fairlead", "bridge", "serve", *options.given(context), image]
    command = ("python3", "-m", "fairlead.bridge")
    return RunReport(flags.output.absolute(), prepared, command, (shlex.join(words),))


def _show_proof(proof: Proof, quiet: bool, report: RunReport | None) -> None:
    if report:
        report.proved(proof)
    if not proof.holds:
        click.echo(show.proof_text(proof), err=True)
    elif not quiet:
        say(show.proof_line(proof))
        print_findings(proof.findings)


def _in_background(flags: ServeFlags) -> int:
    """Starts the same command on its own, and waits until its session is ready."""
    words = [word for word in sys.argv[1:] if word != "--background"]
    before = {session.name: session.server.get("pid") for session in sessions.every()}
    top = sessions.top()
    top.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = top / f"serve-{os.getpid()}.log"
    with log.open("xb") as stream:
        process = subprocess.Popen(
            [*PYTHON, "-m", "fairlead", *[w for w in words if w != "--json"]],
            stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        for session in sessions.every():
            if (
                session.server.get("pid") != before.get(session.name)
                and session.endpoints
                and not session.ended
            ):
                log = log.rename(session.folder / "log")
                text = f"session {session.name}: {len(session.endpoints)} ranks are ready; its log is {log}"
                answer(flags.as_json, "bridge-serve", _session_json(session), text)
                return ExitCode.DONE
        if process.poll() is not None:
            sys.stderr.write(log.read_text("utf-8", errors="replace"))
            log.unlink()
            return process.returncode
        time.sleep(0.1)
    process.terminate()
    raise fail("bridge-not-ready", seconds=_START_S, log=log)


def _session_json(session: sessions.ServerState) -> dict[str, Any]:
    return {**session.server, "folder": str(session.folder), "ranks": len(session.endpoints)}


@bridge.command("status")
@declared
def status(
    session: str | None = argument(metavar="[SESSION]", required=False),
    every: bool = option("--all", "Also list sessions that are over."),
    as_json: bool = JSON,
) -> None:
    """Show sessions; of the ones that run, ranks with their memory, clients and matrices.

    \b
    fairlead bridge status
    fairlead bridge status analytics --json
    """
    sessions_shown = [sessions.find(session)] if session else sessions.every()
    shown = []
    for session_shown in sessions_shown:
        if session_shown.ended and not every and not session:
            continue
        shown.append(
            {**_session_json(session_shown), "ended": session_shown.ended, **_live(session_shown)}
        )
    if as_json:
        print_json("bridge-status", {"sessions": shown})
        return
    if not shown:
        click.echo("no session; `fairlead bridge serve -n 2 bridge` starts one")
    for one_shown in shown:
        click.echo(_status_text(one_shown))


def _live(session: sessions.ServerState) -> dict[str, Any]:
    """What a session says of itself."""
    if session.ended or not session.endpoints:
        return {"state": "over" if session.ended else "starting"}
    from fairlead.bridge.client.session import connect

    try:
        with connect(session.folder, wait_s=5.0) as client:
            answered = client.status()
    except FairleadError as exc:
        return {"state": "silent", "why": exc.findings[0].what}
    keys = ("ranks", "clients", "matrices", "up_s", "operations", "cores")
    return {"state": "ready", **{("workers" if k == "ranks" else k): answered.get(k) for k in keys}}


def _status_text(shown: dict[str, Any]) -> str:
    head = f"{shown['name']}: {shown['state']}, image {shown['image']}, {shown['ranks']} ranks"
    if shown["state"] != "ready":
        return f"{head}; {shown['ended'] or shown.get('why', '')}".rstrip("; ")
    ranks = [
        (
            r["rank"],
            r["host"],
            human_bytes(r["used"]),
            human_bytes(r["peak"]),
            human_bytes(r["most"]),
            r["busy"],
        )
        for r in shown["workers"]
    ]
    clients = [
        (
            c["name"],
            c["workers"],
            "own" if c["exclusive"] else "shared",
            "" if c["connected"] else "gone",
            c["busy"],
        )
        for c in shown["clients"]
    ]
    matrices = [
        (m["id"], m["name"], " x ".join(map(str, m["shape"])), m["form"]["dtype"], m["owner"])
        for m in shown["matrices"]
    ]
    tables = [
        table(rows, head_, width=columns())
        for rows, head_ in (
            (ranks, ("rank", "host", "used", "peak", "limit", "busy with")),
            (clients, ("client", "workers", "", "", "busy with")),
            (matrices, ("matrix", "name", "shape", "type", "client")),
        )
        if rows
    ]
    done = Timings(map(Operation.from_json, (shown["operations"] or [])[-_SHOWN:]), shown["cores"])
    return "\n\n".join([head, *tables, *([str(done)] if done.operations else [])])


@bridge.command("libraries")
@declared
def libraries(
    session: str | None = argument(metavar="[SESSION]", required=False), as_json: bool = JSON
) -> None:
    """List the libraries and functions of a session; without one, those installed here.

    \b
    fairlead bridge libraries
    fairlead bridge libraries analytics --json
    """
    if session:
        from fairlead.bridge.client.session import connect

        with connect(session) as client:
            shown = client.libraries()
    else:
        shown = library.described()
    if as_json:
        print_json("bridge-libraries", {"libraries": shown})
        return
    for described in shown:
        lacks = f" (needs {', '.join(described['lacks'])})" if described["lacks"] else ""
        click.echo(f"{described['name']}: {described['title']}{lacks}")
        for function in described["functions"]:
            click.echo(f"  {function['signature']}\n      {function['doc']}")


@bridge.command("stop")
@declared
def stop(
    session: str | None = argument(metavar="[SESSION]", required=False), as_json: bool = JSON
) -> None:
    """End a session for everybody; its matrices are gone.

    \b
    fairlead bridge stop
    fairlead bridge stop analytics
    """
    from fairlead.bridge.client.session import connect

    running = sessions.find(session)
    connect(running.folder, wait_s=5.0).stop()
    deadline = time.monotonic() + 30
    while not sessions.read(running.folder).ended and time.monotonic() < deadline:
        time.sleep(0.1)
    text = f"session {running.name} was stopped"
    answer(as_json, "bridge-stop", _session_json(running), text)
