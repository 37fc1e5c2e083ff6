"""Data staging of a run: before the command, and after it, however it ended.

On one node this process copies by itself. For several nodes, ``python3 -m fairlead.transfer`` runs on each,
started by an :data:`EachNode`; each process reports in a file of a folder that all nodes see.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.base.errors import ExitCode, FairleadError, Finding, error, fail, warning
from fairlead.base.paths import atomic_write, cache_dir
from fairlead.base.process import PYTHON
from fairlead.base.progress import Progress, Silent, human_bytes
from fairlead.base.serde import from_json, to_json
from fairlead.launch import processes
from fairlead.launch.launch import CommandLine
from fairlead.launch.run_folder import new_run_folder
from fairlead.swap.model import Bind, Line
from fairlead.transfer import node
from fairlead.transfer.model import (
    MOUNT,
    PREFIX,
    VARIABLE,
    InItem,
    Links,
    Moved,
    NodeReport,
    OutItem,
)
from fairlead.transfer.mount import Mounts
from fairlead.transfer.place import Place
from fairlead.transfer.remote import PLAIN, Remote

# Runs words at least once on every node of the job, waits, and gives their exit code.
EachNode = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class Wish:
    """What is to be staged.

    Attributes:
        links: what becomes of links that lead out of what is staged in.
        keep: what was staged in is left to the next run of the same job.
        job: the scheduler's job, as :func:`fairlead.transfer.place.job_here` returns it.
        remote: how what is in object stores travels.
        token: makes this run's folder different from all others.
    """

    ins: tuple[InItem, ...]
    outs: tuple[OutItem, ...]
    place: Place
    links: Links = Links.REFUSE
    keep: bool = False
    job: str = ""
    remote: Remote = PLAIN
    token: str = field(default_factory=lambda: os.urandom(6).hex())

    @property
    def folder(self) -> str:
        """The run's folder, the same on every node."""
        return os.path.join(os.path.abspath(self.place.path), f"{PREFIX}{self.token}")

    @property
    def bind(self) -> Bind:
        return Bind(f"{self.folder}/data", MOUNT)

    @property
    def env(self) -> dict[str, str]:
        """Variables for the container."""
        return {VARIABLE: MOUNT}


@dataclass
class Stage:
    """A run's data on its nodes.

    Attributes:
        moved_in, moved_out: what was copied so far, node by node.
        findings: what the end of it came to.
        kept: ``(node, name): path`` of what could not be copied back.
    """

    wish: Wish
    moved_in: list[Moved] = field(default_factory=list)
    moved_out: list[Moved] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    kept: dict[tuple[str, str], str] = field(default_factory=dict)
    nodes: int = 0


@contextlib.contextmanager
def staged(
    wish: Wish,
    *,
    each_node: EachNode | None = None,
    shared: Path | None = None,
    progress: Progress | None = None,
    on_interrupt: Callable[[Sequence[Finding]], None] = lambda findings: None,
) -> Iterator[Stage]:
    """Stages in, gives the block its data, stages out and removes what was staged.

    Args:
        each_node: starts a step on every node; without it, this node is the only one.
        shared: a folder that all nodes see, for what they report; with ``each_node``.
        on_interrupt: called with the findings of the end when the block ended with an interrupt, which has no
            room for them. Those of a FairleadError are added to it; else they are in
            :attr:`Stage.findings`.
    Raises:
        FairleadError: exit codes 2, 121 and 123; it could not be staged in. Nothing is left then.
    """
    stage, shown = Stage(wish), progress or Silent()
    lock = _in(stage, each_node, shared, shown)

    def out() -> None:
        _out(stage, each_node, shared, shown, on_interrupt)

    try:
        with however_it_ends(out, stage.findings, on_interrupt):
            yield stage
    finally:
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def however_it_ends(
    do: Callable[[], None],
    findings: Sequence[Finding],
    on_interrupt: Callable[[Sequence[Finding]], None],
) -> Iterator[None]:
    """Calls ``do`` when the block has ended, and passes on what that adds to ``findings``."""
    try:
        yield
    except FairleadError as exc:
        do()
        raise FairleadError((*exc.findings, *findings), exc.code) from None
    except BaseException:
        do()
        on_interrupt(findings)
        raise
    else:
        do()


@dataclass
class Results:
    """What is copied out of a folder of this machine.

    Attributes:
        moved: what was copied so far.
        findings: what the end of it came to.
        put_off: nothing is copied now: the command goes on in another job.
    """

    outs: tuple[OutItem, ...]
    top: str
    moved: list[Moved] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    put_off: bool = False


@contextlib.contextmanager
def results_out(
    outs: Sequence[OutItem],
    top: str,
    how: Remote = PLAIN,
    progress: Progress | None = None,
    on_interrupt: Callable[[Sequence[Finding]], None] = lambda findings: None,
) -> Iterator[Results]:
    """Gives the block a folder to leave results in, and copies them to where they are to be, however it ended.

    Args:
        outs: names in the folder; ``.`` for all of it.
        on_interrupt: as of :func:`staged`.
    """
    results, shown = Results(tuple(outs), top), progress or Silent()

    def out() -> None:
        if results.outs and not results.put_off:
            _copied_out(results, how, shown, on_interrupt)

    with however_it_ends(out, results.findings, on_interrupt):
        yield results


def copied_in(
    ins: Sequence[InItem], top: str, how: Remote = PLAIN, progress: Progress | None = None
) -> tuple[Finding, ...]:
    """Copies items into a folder of this machine; what to say of it.

    Raises:
        FairleadError: as :func:`fairlead.transfer.node.copy_in`.
    """
    if not ins:
        return ()
    with _shown(progress or Silent(), "staging in") as (moving, say):
        report = node.copy_in(top, ins, how, moving)
        say(report.items)
    return report.findings


def _copied_out(
    results: Results,
    how: Remote,
    shown: Progress,
    on_interrupt: Callable[[Sequence[Finding]], None],
) -> None:
    """Raises nothing but an interrupt."""
    try:
        with _shown(shown, "staging out") as (moving, say):
            report = node.copy_out(results.top, results.outs, how, moving)
            results.moved += report.items
            say(results.moved)
    except node.Interrupted as exc:
        on_interrupt(exc.report.findings)
        raise
    results.findings += report.findings
    for item in results.outs:
        if item.name in report.missing:
            results.findings.append(error("stage-out-lacking", item=item, top=results.top))


def _in(
    stage: Stage, each_node: EachNode | None, shared: Path | None, shown: Progress
) -> int | None:
    wish, lock, begun = stage.wish, None, False
    try:
        title = "staging in" if wish.ins else "making a folder for data"
        with _shown(shown, title) as (moving, say):
            if each_node:
                begun = True  # on some node, maybe
                words = [*in_words(wish, step=True), *_pins(wish, shared)]
                done = _step(each_node, words, shared)
            else:
                options = node.InOptions(
                    wish.links, wish.job, wish.keep, outs=wish.outs, remote=wish.remote
                )
                here = node.stage_in(wish.folder, wish.ins, options, moving)
                begun, lock, done = True, here.lock, [here.report]
            stage.moved_in += [item for report in done for item in report.items]
            stage.findings += [finding for report in done for finding in report.findings]
            stage.nodes = sum(report.acted for report in done)
            if wish.ins:
                say(stage.moved_in)
    except BaseException:
        if begun and each_node:
            with contextlib.suppress(FairleadError):
                _step(each_node, _words("clear", wish, step=True), shared)
        elif begun:  # interrupted after it was made
            node.stage_out(wish.folder, ())
        raise
    return lock


def _out(
    stage: Stage,
    each_node: EachNode | None,
    shared: Path | None,
    shown: Progress,
    on_interrupt: Callable[[Sequence[Finding]], None],
) -> None:
    """Copies back and removes. Raises nothing but an interrupt."""
    wish = stage.wish
    try:
        title = "staging out" if wish.outs else "removing what was staged"
        with _shown(shown, title) as (moving, say):
            if each_node:
                words = out_words(wish, step=True, each=stage.nodes > 1)
                reports = _step(each_node, words, shared)
            else:
                reports = [
                    node.stage_out(wish.folder, wish.outs, how=wish.remote, on_progress=moving)
                ]
            _noted(stage, reports)
            if wish.outs:
                say(stage.moved_out)
    except node.Interrupted as exc:
        _noted(stage, [exc.report])
        on_interrupt(stage.findings)
        raise
    except FairleadError as exc:
        stage.findings += exc.findings


def _noted(stage: Stage, reports: Sequence[NodeReport]) -> None:
    acted = [report for report in reports if report.acted]
    for report in acted:
        stage.moved_out += report.items
        stage.findings += report.findings
        stage.kept |= {(report.node, name): path for name, path in report.kept.items()}
    for item in stage.wish.outs if acted else ():
        if all(item.name in report.missing for report in acted):
            missing = error("stage-out-missing", item=item, mount=MOUNT, variable=VARIABLE)
            stage.findings.append(missing)


# --- several nodes -------------------------------------------------------------------------------


def unmount(mounts: Mounts, each_node: EachNode, on_finding: Callable[[Finding], None]) -> None:
    """Ends what the nodes of a launch have mounted. Raises nothing but an interrupt.

    Args:
        each_node: starts a step on every node of the launch.
        on_finding: called when that step fails.
    """
    try:
        _step(each_node, mounts.end_words, new_run_folder(cache_dir()))
    except (FairleadError, OSError, ValueError) as exc:
        findings = exc.findings if isinstance(exc, FairleadError) else ()
        why = findings[0].why if findings else str(exc) or "the step was interrupted"
        on_finding(warning("mount-left", folder=mounts.folder, why=why))


def through_launcher(
    launcher: Sequence[str],
    unset: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    limit_s: float | None = None,
) -> EachNode:
    """Starts steps by the words of a launcher.

    Where the launcher chooses the nodes, they start as many processes as the command has ranks, and so on the
    same nodes; those that come second on a node end at once.

    Args:
        unset: variables that must not reach them.
        limit_s: a step that takes longer is ended, with exit code 124.
    """

    def each_node(words: Sequence[str]) -> int:
        line = CommandLine((*launcher, *words), {}, tuple(unset))
        started = processes.start(
            line.argv,
            line.environment(environ),
            f"stage-{os.urandom(4).hex()}",
            processes.Streams(sys.stderr.fileno(), stdin=subprocess.DEVNULL),
        )
        try:
            return started.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return ExitCode.WATCHDOG
        finally:
            # An interrupted step undoes what it has begun, for which it needs a moment.
            processes.end(started, 5.0)

    return each_node


def _step(each_node: EachNode, words: Sequence[str], shared: Path | None) -> list[NodeReport]:
    """Runs a step on every node, and reads what each of its processes reports.

    Raises:
        FairleadError: a node failed, or one ended without a report.
    """
    assert shared is not None
    folder = shared / f"stage-{os.urandom(4).hex()}"
    folder.mkdir(parents=True)
    code = each_node([*words, "--report", str(folder)])
    files = sorted(folder.glob("*.json"))
    reports = [from_json(NodeReport, json.loads(file.read_text("utf-8"))) for file in files]
    failed = [report for report in reports if report.error]
    if failed and "out" not in words:
        findings = {finding: None for report in failed for finding in report.findings}
        raise FairleadError(tuple(findings), ExitCode(failed[0].error))
    if not reports or (code and not failed):
        raise fail("stage-step", status=code, found_count=len(reports), words=shlex.join(words))
    return reports


def _pins(wish: Wish, shared: Path | None) -> list[str]:
    """Words that name a file with the versions of objects, which all nodes read."""
    if not wish.remote.pins:
        return []
    assert shared is not None
    file = shared / f"pins-{wish.token}.json"
    with atomic_write(file, "w", permissions=0o600) as stream:
        json.dump(to_json(wish.remote.pins), stream)
    return ["--pins", str(file)]


def in_words(wish: Wish, *, step: bool = False) -> list[str]:
    """The words that stage in on the node they run on."""
    words = _words("in", wish, step)
    words += ["--follow"] if wish.links is Links.FOLLOW else []
    words += ["--job", wish.job] if wish.job else []
    words += ["--keep"] if wish.keep else []
    words += ["--cache", str(wish.remote.cache)] if wish.remote.cache else []
    for item in wish.ins:
        words += ["--item", item.source, item.name]
    return words


def out_words(wish: Wish, *, step: bool = False, each: bool = False) -> list[str]:
    """The words that stage out, and remove what was staged."""
    words = _words("out", wish, step)
    words += ["--each"] if each else []
    for item in wish.outs:
        words += ["--item", item.name, item.target]
    return words


def _words(verb: str, wish: Wish, step: bool) -> list[str]:
    step_words = ["--step"] if step else []
    rate = ["--rate", f"{wish.remote.rate:.0f}"] if wish.remote.rate else []
    return [*PYTHON, "-m", "fairlead.transfer", verb, wish.folder, *step_words, *rate]


def shell(wish: Wish, line: str, launcher: Sequence[str] = ()) -> str:
    """A line for a shell that stages, runs ``line``, and stages out however it ended.

    Args:
        launcher: words that start a step on every node; each copies back into a folder of its name then.
            Without them, all is on the shell's own node.
    """
    step = bool(launcher)
    into = shlex.join([*launcher, *in_words(wish, step=step)])
    out = shlex.join([*launcher, *out_words(wish, step=step, each=step)])
    return f"{into} && {{ {line}; c=$?; {out} || c=$(($c ? $c : $?)); (exit $c); }}"


# --- words ---------------------------------------------------------------------------------------


def lines(wish: Wish) -> tuple[Line, ...]:
    """What is staged, for ``explain``."""
    folder = f"a folder of this run in {wish.place.path} ({wish.place.kind})"
    whence = "--stage-in: copied once a node before the command, and read back to compare"
    whither = "--stage-out: copied back after the command, however it ended"
    why = f"{folder}, made on each node and removed after the command"
    return (
        Line("stage-data", f"${VARIABLE}={MOUNT}", why, wish.place.why),
        *(Line("stage-data", f"{i.source} -> {MOUNT}/{i.name}", whence) for i in wish.ins),
        *(Line("stage-data", f"{MOUNT}/{o.name} -> {o.target}", whither) for o in wish.outs),
    )


def in_short(moved: Sequence[Moved]) -> str:
    """What was copied, and how fast, in one line; of several nodes, the slowest counts."""
    if not moved:
        return "nothing"
    nodes = {movement.node: [m for m in moved if m.node == movement.node] for movement in moved}
    first = next(iter(nodes.values()))
    files, size = sum(m.files for m in first), sum(m.bytes for m in first)
    text = f"{human_bytes(size)} in {files} file{'s' if files != 1 else ''}"
    text += f" on each of {len(nodes)} nodes" if len(nodes) > 1 else ""
    rates = {
        name: sum(m.data for m in own if not m.reused) / max(sum(m.copy_s for m in own), 1e-6)
        for name, own in nodes.items()
    }
    if all(m.reused for m in moved):
        return f"{text}, kept from an earlier run of this job, verified"
    slowest = min(rates, key=lambda name: rates[name])
    text += f", {human_bytes(rates[slowest])}/s"
    text += f" (the slowest, {slowest})" if len(nodes) > 1 else ""
    text += ", some there already" if any(m.reused for m in moved) else ""
    verified = max(sum(m.verify_s for m in own) for own in nodes.values())
    return f"{text}, verified in {verified:.1f} s"


@contextlib.contextmanager
def _shown(
    shown: Progress, title: str
) -> Iterator[tuple[Callable[[str, int], None], Callable[[Sequence[Moved]], None]]]:
    """A stage of the progress display, fed by what copying reports.

    A reader that is gone, as after a hang-up, must not end a copy.
    """
    stack, whole = contextlib.ExitStack(), [0]
    display = stack.enter_context(shown.stage(title, unit="B"))

    def moving(what: str, count: int) -> None:
        with contextlib.suppress(OSError):
            if what == "size":
                whole[0] += count
                display.total(whole[0])
            elif what == "copying":
                display.advance(count)
            else:
                display.note("reading back")

    try:
        yield moving, lambda moved: display.result(in_short(moved))
    except BaseException as exc:
        with contextlib.suppress(OSError):
            stack.__exit__(type(exc), exc, exc.__traceback__)
        raise
    with contextlib.suppress(OSError):
        stack.close()
