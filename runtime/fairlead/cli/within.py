"""The launch of a verb until it begins: the job that its ranks go into, what records it, and its plan."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import click

from fairlead import site as sites
from fairlead.base.errors import Finding, Severity
from fairlead.base.paths import cache_dir
from fairlead.base.process import PYTHON
from fairlead.base.progress import Progress
from fairlead.cli.options import Planning
from fairlead.cli.screen import print_findings, progress, say
from fairlead.detect.capture import is_capture
from fairlead.launch import allocate
from fairlead.launch.launch import CommandLine, command_line
from fairlead.launch.request import Asked, on_this_machine, with_spares
from fairlead.launch.request import shape as make_shape
from fairlead.launchers.model import Shape
from fairlead.launchers.registry import LAUNCHERS
from fairlead.proof import closure
from fairlead.proof.preload import asked as asked_of_witness
from fairlead.rendezvous import dead_ends
from fairlead.schedulers.model import Allocation
from fairlead.schedulers.registry import find_allocation
from fairlead.session.model import Prepared
from fairlead.session.prepare import needs_fairlead, prepare
from fairlead.session.recorder import Recorder
from fairlead.swap import staging
from fairlead.swap.model import Bind, Plan

_NO_RANK = "no rank of the command called fairlead.comm.init"
_NO_TRAINING = "no rank of a training came as far as fairlead.comm.init"


class LaunchFlags(Protocol):
    """What the options of every verb that launches ranks hold."""

    @property
    def timeline_file(self) -> str: ...
    @property
    def dry_run(self) -> bool: ...
    @property
    def as_json(self) -> bool: ...


@dataclass(frozen=True)
class Ready:
    """A launch that is planned and checked.

    Attributes:
        allocation: the job that the shell is in; None outside of a job.
        recorder: of the timeline; None without ``--timeline``.
    """

    prepared: Prepared
    shape: Shape
    allocation: Allocation | None
    recorder: Recorder | None
    progress: Progress


def plan_launch(
    image: str,
    asked: Asked,
    planning: Planning,
    flags: LaunchFlags,
    *,
    command: tuple[str, ...] = (),
    variables: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> Ready:
    """Finds the job for the ranks as :func:`within` does, then plans and checks the launch.

    Args:
        command: of the user; a training has none.
        variables: of ``--env``.
    Raises:
        FairleadError: as :func:`within` and :func:`prepare` raise it; or no folder can be made next to the timeline.
        click.UsageError: the timeline cannot be such a file.
    """
    shape, allocation = within(asked, planning, dry_run=flags.dry_run, quiet=quiet)
    missing = _NO_RANK if command else _NO_TRAINING
    recorder = _recorder(flags, quiet, missing) if flags.timeline_file else None
    bars = progress(flags.as_json)
    bars = recorder.progress(bars) if recorder else bars
    with recorder.span("plan") if recorder else nullcontext():
        request = planning.request(shape.ranks, command, variables, shape=shape)
        if command:  # a training has its own
            rendezvous = getattr(flags, "rendezvous", request.rendezvous)
            workdir = getattr(flags, "workdir", "")
            request = replace(request, rendezvous=rendezvous, workdir=workdir)
        prepared = prepare(image, planning.choices, request, progress=bars)
    prepared = _with_output(prepared, flags)
    if not command and (lacking := tuple(needs_fairlead(prepared.image, "its ranks"))):
        prepared = replace(prepared, findings=(*prepared.findings, *lacking))
    return Ready(prepared, shape, allocation, recorder, bars)


def _with_output(prepared: Prepared, flags: LaunchFlags) -> Prepared:
    """As the ranks' output is wanted, where the verb has options for that."""
    folder, label = getattr(flags, "output_dir", None), getattr(flags, "label", False)
    if folder and label:
        raise click.UsageError("--label: the logs of --output-dir have one rank each")
    output_dir = str(folder.absolute()) if folder else ""
    request = replace(prepared.plan.request, output_dir=output_dir, label=label)
    return replace(prepared, plan=replace(prepared.plan, request=request))


def within(
    asked: Asked, planning: Planning, *, dry_run: bool = False, quiet: bool = False
) -> tuple[Shape, Allocation | None]:
    """The requested shape, and the job that it is in; None on a machine without one.

    Outside of a job, where the site has a scheduler that can run this very command again in a new one, it does not
    return: this process becomes that scheduler's command.

    Raises:
        FairleadError: exit code 2; the request contradicts itself or the job, or no scheduler can provide it.
    """
    allocation = find_allocation(os.environ)
    created = os.environ.pop(allocate.CREATED, "")
    if created and allocation:  # the job was made with these
        asked = replace(asked, time="", account="", partition="")
    shape = make_shape(asked, allocation)
    elsewhere = is_capture(planning.site or "")  # which launching refuses
    if allocation is None and not dry_run and not elsewhere:
        site, _ = sites.resolve(planning.site)
        again = [*PYTHON, "-m", "fairlead", *sys.argv[1:]]
        more = with_spares(shape, asked.spares)
        if words := allocate.words(more, asked, site, planning.launcher, again, quiet=quiet):
            if not quiet:
                job = shlex.join(words[: words.index("--")])
                say(f"asking {site.scheduler.kind} for nodes: {job}")
            allocate.become(words)
        if not planning.launcher:  # a user's own launcher may start them anywhere
            on_this_machine(shape, len(os.sched_getaffinity(0)), os.environ)
    return shape, allocation


def ready_line(
    plan: Plan,
    command: tuple[str, ...],
    ranks: int,
    binds: tuple[Bind, ...] = (),
    *,
    workdir: str,
    env: Mapping[str, str],
) -> CommandLine:
    """The line that launches the command; it works when it is pasted, since what it binds is made now."""
    cache = cache_dir()
    staging.ensure(plan, cache)
    known = closure.libraries(plan, cache)
    witness, _ = asked_of_witness(plan, ranks, staging.planned_inode(plan, cache), known=known)
    return command_line(plan, command, ranks, binds, workdir=workdir, env={**env, **witness})


def left_out(plan: Plan, command: tuple[str, ...], ranks: int, mode: str) -> list[Finding]:
    """What :func:`ready_line` has not, and a launch has.

    Args:
        mode: of ``--rendezvous``.
    """
    kind = plan.launcher.kind
    rank_in = LAUNCHERS.get(kind).rank_in if kind in LAUNCHERS else ("", "")
    dead_end = dead_ends.bare(mode, command, ranks, rank_in, python=bool(plan.facts.python))
    return [dead_end] if dead_end else []


def _recorder(flags: LaunchFlags, quiet: bool, missing: str) -> Recorder:
    """What records this command until it ends."""
    path = Path(flags.timeline_file).absolute()
    if path.is_dir() or not path.parent.is_dir():
        why = "is a folder" if path.is_dir() else f"{path.parent} is not a folder"
        raise click.UsageError(f"--timeline {flags.timeline_file}: {why}")
    recorder = Recorder(path)
    if not flags.dry_run:
        click.get_current_context().with_resource(_until_the_end(recorder, quiet, missing))
    return recorder


@contextmanager
def _until_the_end(recorder: Recorder, quiet: bool, missing: str) -> Iterator[None]:
    recorder.begin()
    try:
        yield
    finally:
        finding = recorder.finish(missing)
        if finding.severity is Severity.INFO:
            if not quiet:
                say(finding.what)
        elif finding.severity is Severity.ERROR or not quiet:
            print_findings([finding])
