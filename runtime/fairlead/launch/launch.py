"""Launches a plan: the launcher starts the engine once a rank, the engine starts the command.

``command_line`` is pure, and is what ``--dry-run`` prints; ``launch`` runs it, records every
rank's exit code, and sees to it that nothing of the run is left.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from fairlead.base.errors import FairleadError, Finding, error, fail, os_error_as, warning
from fairlead.base.paths import atomic_write
from fairlead.base.process import open_files
from fairlead.engines import rank_shell
from fairlead.engines import registry as engines
from fairlead.engines.model import Call, Words
from fairlead.launch import (
    leftovers,
    node_check,
    node_container,
    processes,
    ranks_output,
    shm_cleanup,
)
from fairlead.launch.leaving import Culprit, Leaving, Ranks, aborter, culprit
from fairlead.launch.leaving import host_of as place_of
from fairlead.launch.node_check import NodeCheck, NodeMounts, Opened
from fairlead.launch.node_container import NodeContainer
from fairlead.launch.nodes import Lost, Nodes, host_of, key, unreachable
from fairlead.launch.processes import INHERITED
from fairlead.launch.processes import Streams as Streams
from fairlead.launch.run_folder import (
    BEGUN,
    OTHERS,
    RankExit,
    adopt,
    exits,
    signal_name,
    within_mpi,
)
from fairlead.launch.stopped import Stopped
from fairlead.launch.warning_signals import WarningSignals
from fairlead.launchers import registry as launchers
from fairlead.launchers.model import Launcher, Shape
from fairlead.launchers.registry import LAUNCHERS
from fairlead.rendezvous.script import RANK, passed
from fairlead.schedulers.registry import down, find_allocation
from fairlead.swap.model import OUTPUT_MOUNT, RUN_MOUNT, Bind, Plan, Request

# Hydra's proxy kills all ranks of its node when the connection of one ends that has not taken leave: of a program that just
# ends, and since MPICH 4.3 also of one that has called MPI_Finalize and ends by _exit. Without a shell the others have ended
# by then; this keeps the connection until their shells have, too. The witness removes `started` at a good end.
_LINGER = (
    f'if [ $c = 0 ] && [ "$PMI_FD" ] && {{ [ -e "${{f%/*}}/started.$r" ] || [ -e "${{f%/*}}/{OTHERS}/started.$r" ]; }}; then '
    "sleep 1 </dev/null >/dev/null 2>&1 & fi; "
)
# Exit codes come through files: launchers mix them (hydra made 7 of a 3 and a 5). The signal is
# raised again, since launchers end the other ranks only when one dies by a signal. The shell itself outlives what schedulers
# send to all processes of a job, or Hydra would kill ranks that save: fairlead.launch.warning_signals. A file that
# stays empty is a rank that was started and then killed by the launcher. RUN is of fairlead.launch.ranks_output.
_RECORD = (
    "{ printf fairlead-rank >/proc/$$/comm; } 2>/dev/null; trap : TERM USR1 USR2; "
    "r=${PMI_RANK:-${PMIX_RANK:-${OMPI_COMM_WORLD_RANK:-${PALS_RANKID:-${FLUX_TASK_RANK:-"
    "${JSM_NAMESPACE_RANK:-${ALPS_APP_PE:-${SLURM_PROCID:-$$}}}}}}}}; "
    '[ -d "$1" ] || { echo "fairlead: $(uname -n) does not see $1: set XDG_CACHE_HOME to a folder that '
    'every node sees" >&2; kill -9 $$; }; '
    '[ ! -e "$1/files" ] || { read -r k n <"$1/files"; read -r h </proc/sys/kernel/hostname; '
    'read -r b </proc/sys/kernel/random/boot_id; [ "$k" != "$h.$b" ] || ulimit -S -n "$n"; } 2>/dev/null; '
    '{ [ ! -e "$1/node.sh" ] || /bin/sh "$1/node.sh" "$1"; } || exit 121; '
    'f=$1/exit.$r o=$2; shift 2; : >"$f"; export FAIRLEAD_RANK=$r; [ ! -e "${f%/*}/world.sh" ] || . "${f%/*}/world.sh"; RUN'
    + _LINGER
    + 'echo $c >"$f"; trap - TERM USR1 USR2; [ $c -gt 128 ] && [ $c -lt 160 ] && kill -$((c-128)) $$; exit $c'
)
# What a launcher has open before it starts ranks: Hydra's proxy 11 files, Open MPI's daemon 22; and what is left over.
_OWN_FILES, _SPARE_FILES = 11, 256
_SPAWN = "spawn.sh"  # by which ranks start programs in the container
# A shell within a job step has them of that step; a launcher sets its own kind, and passes on others.
# SLURM_PROCID is 0 in every batch script, so it comes last above.
_STALE = (
    "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PALS_RANKID",
    "FLUX_TASK_RANK", "JSM_NAMESPACE_RANK", "ALPS_APP_PE", "SLURM_PROCID", RANK,
)  # fmt: skip
_OF_A_STEP = (
    "PMI_", "PMIX_", "OMPI_COMM_WORLD_", "PALS_", "FLUX_TASK_", "JSM_NAMESPACE_", "ALPS_APP_", "SLURM_PROCID",
)  # fmt: skip
_POLL_S = 0.1
_SIGN_OF_LIFE_S = 60.0
_LATEST_S = 5.0  # that the cost of a look may put off the next one
_NOTES_S = 10.0  # for what ranks of other nodes have written to be seen here


@dataclass(frozen=True)
class CommandLine:
    """What is executed: words, and the variables added to and taken from the shell's own.

    Attributes:
        kind: the launcher's.
        files: texts by path, which the words name.
        ranks: how many it starts; 0 where that is unknown.
        in_container: the engine is part of the launcher, and starts the shell around a rank.
        image: what each node has to find before its ranks start.
        mounts: what other nodes mount before theirs.
        container: what ranks of a node join; None where each starts its own.
        hosts: the nodes that were named, if any.
        open_files: what the launcher has open on the fullest node; 0 where that is not known.
        records: each rank leaves its exit code in the run's folder.
    """

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    unset: tuple[str, ...] = ()
    kind: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 0
    in_container: bool = False
    image: Opened | None = None
    mounts: NodeMounts | None = None
    container: NodeContainer | None = None
    hosts: tuple[str, ...] = ()
    open_files: int = 0
    records: bool = False

    def write_files(self) -> None:
        """Writes what the line names; each file's name states its content.

        Raises:
            FairleadError: exit code 123; one cannot be written.
        """
        for name, text in self.files.items():
            written = os_error_as("run-folder-engine-file", name=name)
            with written, atomic_write(Path(name), "w") as stream:
                stream.write(text)

    def shell(self) -> str:
        """A line that can be pasted into a shell."""
        sets = [f"{k}={shlex.quote(v)}" for k, v in self.environ.items()]
        if self.unset:
            sets = ["env", *(f"-u {name}" for name in self.unset), *sets]
        return " ".join([*sets, shlex.join(self.argv)])

    def environment(self, shell: Mapping[str, str]) -> dict[str, str]:
        """The environment it runs in, when ``shell`` is the caller's."""
        gone = {*self.unset, *_STALE}
        kept = {name: value for name, value in shell.items() if name not in gone}
        return {**kept, **self.environ}


@dataclass(frozen=True)
class LaunchResult:
    """How a launch ended.

    Attributes:
        code: of the first rank that failed; the launcher's own when no rank reported.
        started: ranks that were started, whether or not their end was recorded.
        launcher_code: what the launcher itself returned, negative for a signal.
        killed: processes that had to be killed after the launcher's end.
        culprit: the rank that others failed for, by their own account, if it is another than the first that failed.
        aborter: the rank that called MPI_Abort first, where the witness saw it.
        lost: nodes that are out of reach.
        failed_on: host of the first rank that failed, where a rank has noted it.
        terminated: it ended after a SIGTERM for this process, which its ranks have handled.
        unheard: ranks that have left no exit code, though the launcher says that all ended well.
        cut: the first rank that failed had lost the launcher's descriptor when it called MPI_Init.
        again: it was in the MPI_Init of a second program.
        open_files: what the launcher needs, where the hard limit is lower and not all ranks were started.
    """

    code: int
    launcher_code: int
    started: int
    ranks: tuple[RankExit, ...]
    seconds: float = 0.0
    killed: int = 0
    culprit: Culprit | None = None
    aborter: Culprit | None = None
    lost: tuple[Lost, ...] = ()
    failed_on: str = ""
    terminated: bool = False
    unheard: int = 0
    cut: bool = False
    again: bool = False
    open_files: int = 0


def command_line(
    plan: Plan,
    command: Sequence[str],
    ranks: int,
    binds: Sequence[Bind] = (),
    record: Path | None = None,
    workdir: str = "",
    env: Mapping[str, str] | None = None,
) -> CommandLine:
    """The exact line that runs ``command`` on ``ranks`` ranks.

    Args:
        binds: added to the plan's.
        record: folder for the ranks' exit codes; none are recorded without it.
        env: variables for the container, added to the plan's; taken literally.
    """
    call = replace(_call(plan, command, binds), literal=env or {}, workdir=workdir)
    if record is not None:
        call = replace(call, passes=passed())
    driver = engines.ENGINES.get(plan.engine.kind)
    joins = plan.engine.joins and record is not None
    if plan.engine.joins and not joins:
        call = replace(call, env={**call.env, **plan.apart})
    if launchers.is_in_image(plan.launcher):
        return _within(plan, call, ranks, records=record is not None)
    container, files = None, dict[str, str]()
    if record is not None and not driver.words(plan.engine, call).launcher:
        files[str(record / _SPAWN)] = _spawning(plan, call, record)
        call = replace(call, literal={**call.literal, "FAIRLEAD_SPAWN": str(record / _SPAWN)})
    if record is not None and joins:
        words = driver.joining(plan.engine, call, str(record))
        container = _of_node(plan, call, words, str(record))
    else:
        words = driver.words(plan.engine, call)
    output = plan.request.output_dir if record else ""
    if words.launcher and output:
        words = driver.words(
            plan.engine, replace(call, binds=(*call.binds, (output, OUTPUT_MOUNT, False)))
        )
    if words.launcher and launchers.kind_of(plan.launcher) != "srun":
        raise fail("engine-launcher", plan=plan)
    inner = words.argv if words.launcher else _without(plan, words.argv)
    if record is not None:
        # Where the engine is a part of the launcher, this shell is in the container.
        folders = (RUN_MOUNT, output and OUTPUT_MOUNT) if words.launcher else (str(record), output)
        inner = recorded(inner, *folders, plan.launcher.kind, plan.request)
    shape = plan.request.shape.of(ranks)
    whole = launchers.words(plan.launcher, shape, (*words.launcher, *inner))
    environ = {**words.environ, **whole.environ}
    return CommandLine(
        whole.argv,
        environ,
        (*plan.unset, *(plan.withheld if words.launcher else ())),
        plan.launcher.kind,
        {**words.files, **files},
        shape.ranks,
        bool(words.launcher),
        container=container,
        open_files=_open_files(plan.launcher, shape),
        records=record is not None,
    )


def _open_files(launcher: Launcher, shape: Shape) -> int:
    kind = launchers.kind_of(launcher)
    each = LAUNCHERS.get(kind).files_per_rank if kind in LAUNCHERS else 0
    return each and each * (shape.each or shape.ranks) + _OWN_FILES


def _spawning(plan: Plan, call: Call, record: Path) -> str:
    """The script by which a launcher starts a program that a rank spawns, on any node: in the node's container, if there is
    one, or one of its own. It is not a rank of the world that is proved.

    The launcher hands on the ranks' variables, so only what differs stands in it. It goes with the launch.
    """
    driver = engines.ENGINES.get(plan.engine.kind)
    literal = {n: v for n, v in call.literal.items() if not n.startswith("FAIRLEAD_PROOF")}
    bare = replace(call, command=(), literal=literal)
    own = driver.words(plan.engine, replace(bare, env={**bare.env, **plan.apart}))
    ranks = driver.words(plan.engine, call).environ
    lines = [f"unset {shlex.quote(name)}" for name in sorted(ranks.keys() - own.environ.keys())]
    if plan.engine.joins:
        words = driver.joining(plan.engine, bare, str(record)).argv
        kept = f"{shlex.quote(str(record))}/{rank_shell.KEPT}"
        lines += [
            "read -r host </proc/sys/kernel/hostname; read -r boot </proc/sys/kernel/random/boot_id",
            f'[ ! -e {kept}."$host.$boot" ] || exec {shlex.join(_without(plan, words))} "$@"',
        ]
    apart = {n: v for n, v in own.environ.items() if ranks.get(n) != v}
    lines += [f"export {n}={shlex.quote(v)}" for n, v in apart.items()]
    lines.append(f'exec {shlex.join(_without(plan, own.argv))} "$@"')
    return "".join(f"{line}\n" for line in lines)


def _of_node(plan: Plan, call: Call, words: Words, run: str) -> NodeContainer:
    """How a node's container starts, and how it is seen that ranks can join it."""
    driver = engines.ENGINES.get(plan.engine.kind)
    bare = replace(call, env={}, literal={})
    start = driver.kept(plan.engine, replace(bare, command=node_container.COMMAND), run)
    probe = driver.joining(plan.engine, replace(bare, command=node_container.PROBE), run)
    return NodeContainer(start.argv, probe.argv, driver.needed, tuple(words.environ))


def _within(plan: Plan, call: Call, ranks: int, *, records: bool) -> CommandLine:
    """The line that starts the image's own launcher in one container, and the ranks by it."""
    shape, inner, output = plan.request.shape.of(ranks), call.command, plan.request.output_dir
    if records:
        mount_point = OUTPUT_MOUNT if output else ""
        inner = recorded(inner, RUN_MOUNT, mount_point, plan.launcher.kind, plan.request)
        binds = (*call.binds, *([(output, OUTPUT_MOUNT, False)] if output else []))
        call = replace(call, binds=binds)
    whole = launchers.words(plan.launcher, shape, inner)
    call = replace(call, command=whole.argv, literal={**call.literal, **whole.environ})
    words = engines.ENGINES.get(plan.engine.kind).words(plan.engine, call)
    if words.launcher:
        raise fail("engine-launcher-shell", plan=plan)
    kind, files = plan.launcher.kind, words.files
    unset = (*plan.unset, *plan.withheld)
    return CommandLine(
        words.argv,
        words.environ,
        unset,
        kind,
        files,
        shape.ranks,
        in_container=True,
        records=records,
    )


def _without(plan: Plan, words: tuple[str, ...]) -> tuple[str, ...]:
    """A rank's words without the variables that its launcher needs, and its container must not have."""
    if not plan.withheld:
        return words
    return ("env", *(word for name in plan.withheld for word in ("-u", name)), *words)


def _call(plan: Plan, command: Sequence[str], binds: Sequence[Bind] = ()) -> Call:
    return Call(
        plan.opened or plan.image,
        (*plan.wrapper, *command),
        tuple((b.source, b.target, b.read_only) for b in (*plan.binds, *binds)),
        env=plan.env,
        image_env=plan.request.image_env,
        extra=plan.request.engine_args,
        devices=plan.devices,
    )


def terminal_line(
    plan: Plan,
    command: Sequence[str],
    workdir: str = "",
    env: Mapping[str, str] | None = None,
    binds: Sequence[Bind] = (),
    *,
    terminal: bool = True,
) -> CommandLine:
    """The line that runs ``command`` once, without a launcher.

    Args:
        env: variables for the container, added to the plan's; taken literally.
        binds: added to the plan's.
        terminal: it is a user's shell, which gets the terminal that the engine is started at.
    Raises:
        FairleadError: exit code 121; the engine is part of a launcher.
    """
    call = replace(
        _call(plan, command, binds), literal=env or {}, workdir=workdir, terminal=terminal
    )
    words = engines.ENGINES.get(plan.engine.kind).words(plan.engine, call)
    if words.launcher:
        raise fail("engine-launcher-shell", plan=plan)
    # Within a job step it would have the step's, and it is not a rank of that.
    steps = sorted(n for n in os.environ if n.startswith(_OF_A_STEP))
    unset = (*plan.unset, *plan.withheld, *steps)
    return CommandLine(words.argv, words.environ, unset, files=words.files)


def recorded(
    words: Sequence[str],
    folder: str,
    output: str,
    kind: str,
    request: Request = Request(),  # noqa: B008
) -> tuple[str, ...]:
    """``words`` as a rank's command that writes its exit code into ``folder``.

    Args:
        output: folder of the ranks' logs, as the shell sees it.
        kind: the launcher's.
        request: says where the rank's output goes.
    """
    prologue = LAUNCHERS.get(kind).prologue if kind in LAUNCHERS else ""
    script = prologue + _RECORD.replace("RUN", ranks_output.script(request))
    return ("/bin/sh", "-c", script, "fairlead-rank", folder, output, *words)


GRACE_S = 2.0


@dataclass(frozen=True)
class Limits:
    """How long a launch may go on.

    Attributes:
        wall_s: None for a program that may run for days.
        after_all_s: for the launcher once all ranks have ended, and nothing it printed waits to be read.
        after_death_s: for the other ranks once one was killed by a signal, or failed without MPI_Finalize.
        grace_s: between asking the launcher to end and killing it, once a limit has passed.
        end_stopped: a rank that stands still ends the launch, which is otherwise a warning.
    """

    wall_s: float | None = None
    after_death_s: float = 20.0
    after_all_s: float = 30.0
    grace_s: float = GRACE_S
    end_stopped: bool = False


def launch(
    line: CommandLine,
    folder: Path,
    *,
    limits: Limits = Limits(),
    watch: Callable[[WarningSignals], None] = lambda signals: None,
    streams: Streams = INHERITED,
    environ: Mapping[str, str] = os.environ,
    on_finding: Callable[[Finding], None] = lambda finding: None,
) -> LaunchResult:
    """Runs ``line`` to its end; nothing of it survives, whatever ends it.

    Args:
        folder: where ``record`` of :func:`command_line` points.
        watch: called again and again while it runs, with the scheduler's warnings; what it raises ends the launch.
        on_finding: called with what is doubtful while it runs.
    Raises:
        FairleadError: exit code 124 when a limit passed, 123 when the launcher cannot be executed, and as
            :class:`NodeCheck`.
        KeyboardInterrupt: after everything was ended.
    """
    line.write_files()
    check = NodeCheck(folder, line.image)
    nodes = _nodes(line, folder, on_finding)
    begun = time.monotonic()
    with suppress(OSError):
        (folder / BEGUN).touch()
    leftovers.clear_dead(folder.parent)
    memory = leftovers.begin(folder)
    whole, grace_s = False, GRACE_S
    leaving = Leaving(folder, on_finding, look=Ranks(folder.name, nodes).waiter)
    with os_error_as("launcher-cannot-executed", line=line):
        started = processes.start(
            line.argv,
            line.environment(environ),
            folder.name,
            streams,
            open_files=_raised(line, folder),
        )

    standing = _Standing(folder.name, nodes, limits.end_stopped, on_finding)
    signals = WarningSignals(folder.name, nodes, on_finding)

    def look() -> None:
        check.look()
        signals.look()
        if nodes:
            nodes.look()
        standing.look()
        watch(signals)

    try:
        with signals:
            done = _wait(
                started.process, folder, limits, look, leaving, _AllEnded(line, limits, streams)
            )
        check.look()
        if not done:
            on_finding(warning("launcher-after-ranks", line=line, limits=limits))
        well = done and started.process.returncode == 0
        unheard = _unheard(line, folder) if well and line.records else 0
        whole = started.process.returncode == 0 and not unheard
        outlive = line.kind != "srun"  # Slurm ends all of a step
        lost = nodes.lost(agents_outlive_ranks=outlive) if nodes and not whole else ()
    except FairleadError:
        grace_s = limits.grace_s
        raise
    finally:
        leaving.close()
        if nodes:
            nodes.close()
        node_container.release(folder, key())
        killed = processes.end(started, grace_s)
        if line.kind in LAUNCHERS and not whole:
            LAUNCHERS.get(line.kind).cancel(line.argv[0], folder, environ)
        if not whole or killed:
            shm_cleanup.clear(memory)
        (folder / _SPAWN).unlink(missing_ok=True)
        leftovers.end(folder)
    result = _result(folder, started.process.returncode, done, unheard)
    return replace(
        result,
        seconds=time.monotonic() - begun,
        killed=killed,
        lost=_lost(line, folder, result.started, lost, environ) if result.code else (),
        terminated=signals.terminated,
        open_files=line.open_files
        if result.launcher_code and _lacks_files(line, result.started)
        else 0,
    )


def _raised(line: CommandLine, folder: Path) -> int:
    """The soft limit of open files that a launcher of many ranks gets, which these lower again; 0 for the one it has."""
    soft, hard = open_files()
    wanted = min(line.open_files + _SPARE_FILES, hard)
    if not line.open_files or wanted <= soft:
        return 0
    with os_error_as("run-folder-records", folder=folder):
        (folder / "files").write_text(f"{key()} {soft}\n", "utf-8")
    return wanted


def _nodes(line: CommandLine, folder: Path, on_finding: Callable[[Finding], None]) -> Nodes | None:
    """What follows the launch's nodes, which find in ``folder`` what they do first; None where they are not followed."""
    if line.in_container:
        return None
    nodes = Nodes(folder, on_finding) if line.ranks != 1 else None
    node_check.write(
        folder, line.image,
        agents=nodes is not None, mounts=line.mounts, container=line.container,
    )  # fmt: skip
    return nodes


def _unheard(line: CommandLine, folder: Path) -> int:
    """How many ranks have left no exit code behind a launcher that has ended with 0.

    srun returns 0 for a step of one rank whose node has died, and a program called mpiexec may start nothing at all.
    """
    until = time.monotonic() + _NOTES_S
    while True:
        ended = len(exits(folder))
        missing = max(line.ranks, len(list(folder.glob("exit.*")))) - ended
        if missing <= 0 or time.monotonic() > until:
            return max(missing, 0)
        time.sleep(_POLL_S)
        with suppress(OSError):  # a client of NFS looks again into a folder that it has changed
            (folder / "look").touch()
            (folder / "look").unlink()


def _result(folder: Path, own: int, done: bool, unheard: int) -> LaunchResult:
    """How the ranks of a run's folder ended, and a launcher that was (``done``) through with them."""
    adopt(folder)
    ranks = exits(folder)
    failed = [r for r in ranks if r.code]
    code = failed[0].code if failed else (own or bool(unheard)) if done else 0
    first = failed[0].rank if failed else ""
    words = {r.rank: f"ended: {signal_name(r.code)}" for r in ranks}
    return LaunchResult(
        int(code) if code >= 0 else 128 - code,
        own,
        len(list(folder.glob("exit.*"))),
        ranks,
        culprit=culprit(folder, first, words) if code else None,
        aborter=aborter(folder) if code else None,
        failed_on=place_of(folder, first) if first else "",
        unheard=0 if failed else unheard,
        cut=bool(first) and (folder / f"cut.{first}").exists(),
        again=bool(first) and (folder / f"again.{first}").exists(),
    )


def _wait(
    process: subprocess.Popen[bytes],
    folder: Path,
    limits: Limits,
    watch: Callable[[], None],
    leaving: Leaving,
    all_ended: _AllEnded,
) -> bool:
    """False when the ranks have all ended, and the launcher does not."""
    died_at: float | None = None
    begun = time.monotonic()
    looked, signed = 0.0, begun
    while True:
        if processes.wait(process, _POLL_S):
            return True
        adopt(folder)
        watch()
        now = time.monotonic()
        if now - looked > 0.2:
            spent = time.thread_time()
            ended = exits(folder)
            leaving.look({r.rank: r.code for r in ended})
            if all_ended.look(len(ended), now):
                return False
            # Of ten thousand ranks, a look takes a while: it must not cost a core.
            looked = now + min(_LATEST_S, 50 * (time.thread_time() - spent))
            dead = [
                r for r in ended if 128 < r.code < 160 or (r.code and within_mpi(folder, r.rank))
            ]
            died_at = (died_at or now) if dead else None
            if died_at and now - died_at > limits.after_death_s:
                reason = signal_name(dead[0].code)
                host = place_of(folder, dead[0].rank)
                raise fail(
                    "rank-died", rank=dead[0].rank, signal_name=reason, limits=limits, host=host
                )
        if now - signed > _SIGN_OF_LIFE_S:
            signed = now
            with suppress(OSError):
                os.utime(folder)  # so that no later run takes it for one that has ended
        if limits.wall_s is not None and now - begun > limits.wall_s:
            raise fail("watchdog-launch", limit_s=limits.wall_s, folder=folder)


class _Standing:
    """Ranks that stand still, here and on other nodes."""

    def __init__(
        self, run_id: str, nodes: Nodes | None, ends: bool, on_finding: Callable[[Finding], None]
    ):
        self._here = Stopped(lambda: processes.of_run(run_id))
        self._nodes, self._ends, self._on_finding = nodes, ends, on_finding
        self._reported = False

    def look(self) -> None:
        stopped = dict(self._nodes.stopped) if self._nodes else {}
        rank = self._here.look() if not self._reported else None
        if rank is not None:
            stopped[os.uname().nodename] = rank
        if not stopped or self._reported:
            return
        self._reported = True
        host, rank = next(iter(stopped.items()))
        words = f"rank {rank}" if rank else "a rank"
        if self._ends:
            raise fail("rank-stopped", rank=words, host=host)
        self._on_finding(warning("rank-stopped-waits", rank=words, host=host))


class _AllEnded:
    """Whether a launcher goes on for long after its ranks have ended: strangers may hold its connections."""

    def __init__(self, line: CommandLine, limits: Limits, streams: Streams):
        self._ranks, self._limit_s = line.ranks, limits.after_all_s
        self._outputs = [
            file if file is not None else number
            for number, file in ((1, streams.stdout), (2, streams.stderr))
            if file is None or not isinstance(file, int) or file >= 0
        ]
        self._since: float | None = None

    def look(self, ended: int, now: float) -> bool:
        if not self._ranks or ended < self._ranks or not self._all_read():
            self._since = None
            return False
        self._since = self._since or now
        return now - self._since > self._limit_s

    def _all_read(self) -> bool:
        """Whether the launcher can write: a pager that stands still holds its output."""
        with suppress(OSError, ValueError):
            return len(select.select([], self._outputs, [], 0)[1]) == len(self._outputs)
        return True  # closed


def _lacks_files(line: CommandLine, started: int) -> bool:
    """Whether ranks have not started whose launcher needs more open files than it may have."""
    _, hard = open_files()
    return started < line.ranks and line.open_files > hard


def _without_files(need: int, started: int) -> Finding:
    _, limit = open_files()
    return error("launch-open-files", need=need, limit=limit, started=started)


def lack_of_files(line: CommandLine, folder: Path) -> Finding | None:
    """Why ranks have not started, if their launcher needs more open files than it may have: it may wait for them."""
    started = len(list(folder.glob("exit.*")))
    return _without_files(line.open_files, started) if _lacks_files(line, started) else None


def _lost(
    line: CommandLine,
    folder: Path,
    started: int,
    silent: tuple[Lost, ...],
    environ: Mapping[str, str],
) -> tuple[Lost, ...]:
    """The nodes that a launch has failed with: those that do not answer, those that the scheduler says have failed, and, where
    ranks have not come up, those that were named, that nothing was heard of, and to which there is no way.

    Args:
        silent: nodes whose agents do not answer.
    """
    if silent:
        return silent
    failed = down(find_allocation(environ), environ, line.hosts)
    if failed or (line.ranks and started >= line.ranks):
        return tuple(Lost(host, why) for host, why in failed.items())
    heard = {host_of(path).partition(".")[0] for path in folder.glob("node.*.*")}
    unheard = [host for host in line.hosts if host.partition(".")[0] not in heard]
    # srun has the addresses from its controller: a name need not resolve.
    gone = unreachable(unheard, unresolved=line.kind != "srun")
    return tuple(Lost(host, why) for host, why in gone.items())


def killed(result: LaunchResult, hosts: Mapping[int, str]) -> Finding | None:
    """The rank that failed first, if a signal ended it, with its host; else None."""
    first = next((r for r in result.ranks if r.code), None)
    finding = explain_exit(result) if first and first.code > 128 else None
    return replace(finding, where=on_host(finding.where, hosts)) if finding else None


def on_host(where: str, hosts: Mapping[int, str]) -> str:
    """``rank 3, …`` as ``rank 3 on n0017, …``, where the host is known and not yet reported."""
    named = re.match(r"rank (\d+)(?! on )\b", where)
    host = hosts.get(int(named[1])) if named else None
    return f"{named[0]} on {host}{where[named.end() :]}" if named and host else where


_REMEDIES = {
    135: "SIGBUS is most often shared memory that is full: `df -h /dev/shm` on the rank's host",
    137: "SIGKILL is most often the kernel when memory runs out: `dmesg | grep -i oom`",
}


def _explain_abort(result: LaunchResult) -> Finding:
    """Why a launch ended badly in which no rank has noted an exit code."""
    if result.culprit:
        return error("aborted-for-one", culprit=result.culprit)
    if result.aborter:
        return error("aborted-by-one", aborter=result.aborter, started=result.started)
    if result.started:
        return error("aborted", signal_name=signal_name(result.code), started=result.started)
    return error("launch", signal_name=signal_name(result.code))


def _explain_start(result: LaunchResult) -> Finding | None:
    """What kept ranks from starting or from being heard of, outside of them."""
    if result.lost:
        others = [f"{lost.host}: {lost.why}" for lost in result.lost[1:6]]
        return error("host-lost", lost=result.lost[0], others="; ".join(["", *others]))
    if result.open_files:
        return _without_files(result.open_files, result.started)
    if result.unheard:
        return error("aborted-unheard", unheard=result.unheard, started=result.started)
    return None


def explain_exit(result: LaunchResult) -> Finding | None:
    """What went wrong in a launch that ended badly; None when every rank ended with 0."""
    if result.code == 0:
        return None
    if finding := _explain_start(result):
        return finding
    failed = [r for r in result.ranks if r.code]
    if not failed:
        return _explain_abort(result)
    first = failed[0]
    after = [f"rank {r.rank}: {signal_name(r.code)}" for r in failed[1:6]]
    if lost := result.started - len(result.ranks):
        after.append(f"the launcher ended {lost} more")
    why = f"after it: {', '.join(after)}" if after else "every other rank ended well"
    if result.started == 1:
        why = "it was the only rank"
    remedy = _REMEDIES.get(first.code, "read its own output above for the reason")
    reason = signal_name(first.code)
    if result.cut:
        return error("rank-cut-off", rank=first.rank, why=why, host=result.failed_on)
    if result.again:
        return error(
            "rank-again", rank=first.rank, signal_name=reason, why=why, host=result.failed_on
        )
    if result.culprit:
        return error(
            "rank-culprit",
            culprit=result.culprit,
            rank=first.rank,
            signal_name=reason,
            why=why,
            remedy=remedy,
        )
    return error(
        "rank-failed", rank=first.rank, signal_name=reason, why=why, remedy=remedy, host=result.failed_on
    )  # fmt: skip
