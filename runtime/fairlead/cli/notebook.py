"""``fairlead notebook``: JupyterLab whose cells run on ranks."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fairlead.base.errors import ExitCode, fail
from fairlead.cli import options
from fairlead.cli.declare import JSON, argument, declared, option
from fairlead.cli.run import announce
from fairlead.cli.screen import answer, hand_over, print_findings, print_json, say
from fairlead.cli.within import plan_launch
from fairlead.launch.request import seconds
from fairlead.notebook import journal, lab, session
from fairlead.notebook.lab import Lab
from fairlead.notebook.overlay import overlay
from fairlead.notebook.session import Session, Wanted
from fairlead.notebook.settings import (
    ENDED,
    KERNEL,
    SERVER,
    order,
    read_json,
    saved_to,
    write_private,
)
from fairlead.session.prepare import refuse

EPILOG = """\b
Examples:
  fairlead notebook -n 4 analytics
  fairlead notebook -n 2 --with-kernel ./app.sif
  fairlead notebook -N 8 --ranks-per-node 8 --time 2h --idle 30m analytics
  fairlead notebook --list
  fairlead notebook --stop analytics

\b
In a cell:
  %%ranks                 runs it on all ranks; %%ranks 0-3,7 on some
  %ranks                  shows them; %ranks help lists all forms

\b
Exit codes: 0 stopped; 1 a rank failed; 121 refused; 122 the proof failed; 123 engine or launcher failed.
"""
_LABS = ("auto", "own", "image", "none")


def _seconds(context: click.Context, parameter: click.Parameter, text: str) -> float:
    """``30m``, ``2h`` or seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    with suppress(ValueError):
        if (seconds := float(number or 0) * unit) >= 0:
            return seconds
    raise click.BadParameter(f"{text}: write seconds, or a number with s, m or h")


@dataclass(frozen=True, kw_only=True)
class NotebookFlags:
    """The options of ``fairlead notebook`` that no other group of options holds."""

    lab: str = option(
        "--lab",
        "JupyterLab to start: the one next to fairlead, the image's, or none.",
        default="auto",
        type=click.Choice(_LABS),
    )
    port: int = option(
        "--port",
        "Port of JupyterLab on the loopback interface; 0 for a Unix socket.",
        default=8888,
        type=click.IntRange(0, 65535),
    )
    with_kernel: bool = option(
        "--with-kernel", "Lay ipykernel and ipyparallel over an image that lacks them."
    )
    name: str = option("--name", "Name of the session.  [default: the image's]", default="")
    idle: float = option(
        "--idle TIME",
        "End the session when no cell has run for so long: 45m, 2h.  [default: never]",
        default="0",
        type=str,
        callback=_seconds,
        show_default=False,
    )
    interface: tuple[str, ...] = option(
        "--interface NAME",
        "Network interface by which ranks of other nodes reach the kernel, or a pattern. Repeatable."
        "  [default: the site's]",
    )
    timeline: bool = option(
        "--timeline", "Record what ranks do in fairlead.comm; `%ranks timeline` draws it."
    )
    env: tuple[str, ...] = options.ENV
    workdir: str = options.WORKDIR
    rendezvous: str = options.RENDEZVOUS
    watchdog: float | None = options.WATCHDOG
    list_them: bool = option("--list", "List the sessions, and where they can be reached.")
    stop: str = option("--stop NAME", "End a session; what `%ranks save` names is saved.")
    output_of: str = option(
        "--output-of NAME", "Print a session's cells with their outputs as a notebook (.ipynb)."
    )
    force: bool = option("--force", "Continue when the checks refuse; the proof still decides.")
    timeline_file: str = ""
    quiet: bool = option("-q --quiet", "Print only errors.")
    dry_run: bool = False
    as_json: bool = JSON


@click.command(epilog=EPILOG)
@declared
def notebook(
    asked: options.Placement,
    planning: options.Planning,
    flags: NotebookFlags,
    image: str | None = argument(metavar="[IMAGE]", required=False),
) -> int:
    """Start a kernel in IMAGE with one engine a rank behind it, and JupyterLab in front of it.

    The ranks run on the host's MPI, proved as by `fairlead run`; cells that begin with `%%ranks` run on them. The
    session outlives its browser and its server. Only you can reach it: by a token, through the loopback interface or a
    Unix socket.
    """
    if flags.list_them:
        return _listed(flags)
    if flags.stop:
        return _stopped(flags)
    if flags.output_of:
        click.echo(json.dumps(journal.notebook(_folder(flags.output_of)), indent=1))
        return ExitCode.DONE
    if image is None:
        raise click.UsageError("name an IMAGE, as in: fairlead notebook -n 2 analytics")
    return _started(image, asked, planning, flags)


def _started(
    image: str, asked: options.Placement, planning: options.Planning, flags: NotebookFlags
) -> int:
    variables = options.variables(flags.env)
    ready = plan_launch(
        image, asked, planning, flags, command=("python3",), variables=variables, quiet=flags.quiet
    )
    prepared = ready.prepared
    if prepared.refused and not flags.force:
        raise refuse(prepared)
    laid = overlay(prepared.image, flags.with_kernel, ready.progress)
    if not flags.quiet:
        announce(prepared)
    wanted = Wanted(
        flags.name,
        flags.idle,
        flags.interface,
        flags.workdir or str(Path.cwd()),
        variables,
        flags.watchdog,
        seconds(asked.time) if asked.time else 0.0,
        ready.allocation.hosts if ready.allocation else (),
        flags.timeline,
    )
    with Session(wanted, prepared, ready.shape.ranks, laid) as started:
        own = _lab(started, flags, prepared.image.packages["wheel"], ready.shape.ranks)
        try:
            _served(started, own, flags)
        except KeyboardInterrupt:
            write_private(started.folder / ENDED, "it was interrupted")
        finally:
            if own:
                own.end()
    if not flags.quiet:
        say(f"session {started.folder.name} is over: {(started.folder / ENDED).read_text('utf-8')}")
    if started.saved and (not flags.quiet or "not saved" in started.saved):
        say(started.saved)
    if started.unsaved:
        who = "; ".join(f"{name.replace('-', ' ')}: {why}" for name, why in started.unsaved.items())
        raise fail("notebook-unsaved", folder=saved_to(started.folder), who=who)
    return ExitCode.DONE


def _lab(started: Session, flags: NotebookFlags, wheels: Any, ranks: int) -> Lab | None:
    """The JupyterLab that is wanted, not yet started."""
    own, images = lab.own_lab(), "jupyterlab" in wheels
    if flags.lab == "none":
        return None
    if flags.lab == "auto" and not (own or images):
        say(
            "no JupyterLab here or in the image: pip install 'fairlead[notebook]'; any Jupyter can use the kernel"
        )
        return None
    image = flags.lab == "image" or (flags.lab == "auto" and not own)
    title = f"{Path(started.settings.image).stem} on {ranks} ranks"
    return Lab(started, image=image, port=flags.port, title=title)


def _served(started: Session, own: Lab | None, flags: NotebookFlags) -> None:
    shown = False

    def look() -> None:
        nonlocal shown
        if own is None:
            return
        if finding := own.look():
            print_findings([finding])
        if not shown and (own.is_ready or finding):
            shown = True
            _show(started, own if own.is_ready else None, flags)

    def ready() -> None:
        if own:
            own.start()
        else:
            _show(started, None, flags)

    def proved(line: str) -> None:
        if not flags.quiet:
            say(f"proved: {line}")

    started.extra.append(look)
    hand_over(to_ranks=True)
    try:
        started.run(ready, proved)
    finally:
        hand_over(to_ranks=False)


def _show(started: Session, own: Lab | None, flags: NotebookFlags) -> None:
    document = _described(started.folder)
    if flags.as_json:
        print_json("notebook", document)
        return
    if flags.quiet:
        return
    say(f"session {started.folder.name}: the kernel is ready; Ctrl-C or `%ranks stop` ends it")
    if started.cost:
        say(f"it costs {started.cost}")
    if own:
        say(f"JupyterLab: {own.url}")
        say(f"from your own machine, first: {own.tunnel}")
    else:
        say(f"its connection file: {started.folder / KERNEL}")


def _described(folder: Path) -> dict[str, Any]:
    server, reached = read_json(folder / SERVER), lab.shown(folder)
    ended = (folder / ENDED).read_text("utf-8") if (folder / ENDED).exists() else ""
    return {
        "name": folder.name, "image": server.get("image", ""), "ranks": server.get("ranks", 0),
        "host": server.get("host", ""), "pid": server.get("pid", 0), "folder": str(folder), "ended": ended,
        "url": reached.get("url", ""), "socket": reached.get("socket", ""),
    }  # fmt: skip


def _folder(name: str) -> Path:
    """The folder of a session, also of one that is over."""
    folder = session.top() / name
    return folder if folder in session.every() else session.find(name)


def _listed(flags: NotebookFlags) -> int:
    sessions = [_described(folder) for folder in session.every()]
    lines = [
        f"{described['name']}: {described['image']}, {described['ranks']} ranks, "
        + (
            f"over: {described['ended']}"
            if described["ended"]
            else f"on {described['host']}  {described['url']}".rstrip()
        )
        for described in sessions
    ]
    text = "\n".join(lines) or "no session; `fairlead notebook -n 2 analytics` starts one"
    answer(flags.as_json, "notebook-list", {"sessions": sessions}, text)
    return ExitCode.DONE


def _stopped(flags: NotebookFlags) -> int:
    folder = session.find(flags.stop)
    order(folder, do="stop", why="`fairlead notebook --stop`")
    document = _described(folder)
    answer(flags.as_json, "notebook-stop", document, f"session {folder.name} saves and ends")
    return ExitCode.DONE
