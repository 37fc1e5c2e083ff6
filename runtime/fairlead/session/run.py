"""From a checked plan to proved ranks: stage, launch, and prove the launch from within it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead import native
from fairlead.base import comm_waits, seals
from fairlead.base.errors import ExitCode, FairleadError, Severity, fail
from fairlead.base.paths import cache_dir
from fairlead.base.progress import Progress, Silent
from fairlead.elf.facts import AbiFamily
from fairlead.image import signature
from fairlead.launch import launch, node_check, shared_cache, unpack
from fairlead.launch.launch import CommandLine, LaunchResult
from fairlead.launch.request import nodes_of
from fairlead.launch.requeue import STAND_INS
from fairlead.launch.run_folder import new_run_folder
from fairlead.launch.warning_signals import WarningSignals
from fairlead.launchers.registry import is_in_image, kind_of
from fairlead.proof import closure, nccl, preload
from fairlead.proof.probe_job import probe
from fairlead.proof.verdict import Proof, misplaced
from fairlead.rendezvous import script
from fairlead.rendezvous.choose import frameworks
from fairlead.rendezvous.worlds import EXPECTED, HOOK, World, Worlds, lay
from fairlead.schedulers.registry import find_allocation
from fairlead.session.model import Launched, LaunchOptions, Prepared
from fairlead.swap import staging
from fairlead.swap.model import Bind, Plan

_UCX_LOGS = ("UCX_LOG_LEVEL", "UCX_LOG_FILE")


def launch_proved(
    prepared: Prepared, command: Sequence[str], ranks: int, options: LaunchOptions | None = None
) -> Launched:
    """Stages what the plan stages, launches the command, and proves the launch from within it.

    Raises:
        FairleadError: exit code 122 when the ranks are not as planned, 124 when the start-up makes no
            progress, 123 when engine or launcher cannot start it. When it failed before MPI had
            started, a probe looks for the cause.
    """
    options = options or LaunchOptions()
    cache = cache_dir(options.environ)
    _stage(prepared, cache, options)
    proof = None
    if options.probe_first or not prepared.plan.witness:
        proof = prove_it(prepared, ranks, options.limit_s, options.environ, options.env)
        options.on_proof(proof)
    still_as_verified(prepared)
    allocation = options.allocation or find_allocation(options.environ)
    # Every node must see the staged folder and the run's.
    shape = prepared.plan.request.shape
    if allocation and not shape.nodes:
        shape = replace(shape, nodes=min(allocation.nodes, ranks))
    launcher = prepared.plan.launcher
    if doubt := shared_cache.seen_by_all(cache, shape, launcher, options.environ):
        options.on_finding(doubt)
    folder = new_run_folder(cache)
    inode, libraries = (
        staging.planned_inode(prepared.plan, cache),
        closure.libraries(prepared.plan, cache),
    )
    nodes = shape.hosts or (allocation.hosts if allocation else ())
    limit_s = options.limit_s or prepared.plan.site.start_s
    signed = prepared.verified is not None
    slots = allocation.slots // allocation.nodes if allocation and allocation.nodes else 0
    expected = preload.Expected(
        prepared.plan, ranks, inode, folder, nodes, libraries, signed, slots
    )
    options = _meeting(prepared, expected, options)
    if options.requeue and prepared.plan.witness and options.requeue.lay(folder):
        options = _searched_first(prepared, options, f"{preload.RUN_MOUNT}/{STAND_INS}")
    options, network = _networked(prepared, folder, ranks, options)
    line = _command_line(prepared, command, expected, options)
    startup = preload.Startup(expected, limit_s, options.on_proof)
    worlds = Worlds(folder, ranks, _placed(prepared.plan, ranks, options), options.on_finding)
    options.on_start(line, folder)
    result = _launched(prepared, line, _Watched(startup, worlds, network), options)
    still_as_verified(prepared)
    _check_records(result, folder)
    known = not prepared.plan.unknown_mpi  # else a probe could not ask it either
    if known and result.code and not (startup.proof or proof or result.lost or result.open_files):
        _look_for_cause(prepared, ranks, options)
    proof = startup.proof or proof
    formed = tuple(worlds.formed.values())
    unproved = None if proof else startup.unproved()
    return Launched(line, result, proof, unproved, formed, network.proof if network else None)


def _look_for_cause(prepared: Prepared, ranks: int, options: LaunchOptions) -> None:
    """Probes a plan whose launch has failed without a proof.

    Raises:
        FairleadError: as :func:`prove_it`; nothing where the image has no Python to probe with, so that the launch's own
            exit code stands.
    """
    try:
        prove_it(prepared, ranks, options.limit_s, options.environ, options.env)
    except FairleadError as exc:
        if exc.findings[0].check != "no-python":
            raise


def _placed(plan: Plan, ranks: int, options: LaunchOptions) -> Callable[[World], None]:
    """What is done with a framework's world: it has to be on the nodes that were requested."""

    def on_world(world: World) -> None:
        options.on_world(world)
        for finding in misplaced(plan, ranks, len(world.hosts), 0, ", ".join(world.hosts[:8])):
            if finding.severity is Severity.ERROR:
                raise FairleadError(finding, ExitCode.PROOF_FAILED)
            options.on_finding(finding)

    return on_world


@dataclass(frozen=True)
class _Watched:
    """What follows a launch while it runs."""

    startup: preload.Startup
    worlds: Worlds
    network: nccl.NcclWatch | None


def _networked(
    prepared: Prepared, folder: Path, ranks: int, options: LaunchOptions
) -> tuple[LaunchOptions, nccl.NcclWatch | None]:
    """What follows NCCL's log, if something is planned of its network; ``options`` with the variables that ask for it, and the expectation."""
    options = replace(options, nccl=options.nccl or nccl.expected_of(prepared.plan))
    if options.nccl is None:
        return options, None
    given = {name: _in_container(prepared, options, name) for name in nccl.VARIABLES}
    given = {n: v or options.environ.get(n, "") for n, v in given.items()}
    if finding := nccl.notice(folder, given):
        options.on_finding(finding)
    own = given["NCCL_DEBUG_FILE"]
    watch = nccl.NcclWatch(options.nccl, ranks, folder, own, options.on_nccl)
    return replace(options, env={**options.env, **nccl.settings(given)}), watch


def _meeting(
    prepared: Prepared, expected: preload.Expected, options: LaunchOptions
) -> LaunchOptions:
    """Lays what ranks find each other by into the run's folder; ``options`` with the hook's variables."""
    plan, folder = prepared.plan, expected.folder
    request = plan.request
    chosen = frameworks(request.rendezvous, request.command, python=bool(plan.facts.python))
    if not chosen:
        return options
    text = script.text(
        chosen, expected.ranks, folder.name, plan.site.fabric.interfaces, of_slurm=plan.launcher.kind == "srun",
    )  # fmt: skip
    lay(folder, text)
    if not plan.witness:  # the container does not see the run's folder
        return options
    behind = _in_container(prepared, options, "PYTHONPATH")
    path = ":".join(filter(None, (f"{preload.RUN_MOUNT}/{HOOK}", behind)))
    return replace(options, env={**options.env, "PYTHONPATH": path, EXPECTED: str(expected.ranks)})


def _searched_first(prepared: Prepared, options: LaunchOptions, folder: str) -> LaunchOptions:
    """``options`` with a folder of the container first in its PATH, where that is known."""
    behind = _in_container(prepared, options, "PATH")
    if not behind:
        return options
    return replace(options, env={**options.env, "PATH": f"{folder}:{behind}"})


def _in_container(prepared: Prepared, options: LaunchOptions, name: str) -> str:
    request = prepared.plan.request
    given = (options.env, request.searched, prepared.plan.env, request.image_env)
    return next((env[name] for env in given if env.get(name)), "")


def _stage(prepared: Prepared, cache: Path, options: LaunchOptions) -> None:
    staging.ensure(prepared.plan, cache, options.environ)
    binds = (Bind(str(cache), preload.RUN_MOUNT), *options.binds)
    unpack.ensure(prepared.plan, cache, options.progress, binds, options.environ)


def _command_line(
    prepared: Prepared,
    command: Sequence[str],
    expected: preload.Expected,
    options: LaunchOptions,
) -> CommandLine:
    """The line, with the witness's variables and the collective core in the run's folder."""
    env, environ = options.env, options.environ
    quiet = not any(name in env or name in environ for name in _UCX_LOGS)
    ranks, folder = expected.ranks, expected.folder
    variables, binds = preload.asked(
        prepared.plan, ranks, expected.inode, folder, ucx=quiet, known=expected.known
    )
    cache = cache_dir(environ)
    core = _collective_core(folder, cache, environ, options.progress) if binds else {}
    if options.nccl and not binds:  # without a witness nothing else is written there by ranks
        binds = (Bind(str(folder), preload.RUN_MOUNT),)
    elif binds:
        core[comm_waits.RUN_FOLDER] = preload.RUN_MOUNT
    line = launch.command_line(
        prepared.plan, command, ranks, (*binds, *options.binds), record=folder,
        workdir=options.workdir, env={**core, **env, **variables},
    )  # fmt: skip
    if line.container:  # it is named before the watchdog sees that no rank has started
        limit_s = 0.8 * (options.limit_s or prepared.plan.site.start_s)
        line = replace(line, container=replace(line.container, limit_s=limit_s))
    if options.mounts and line.in_container:
        raise fail("mount-nodes", line=line)
    alone = _alone(prepared.plan, expected.nodes, options)
    image = node_check.opened(prepared.plan, prepared.image, prepared.verified, alone=alone)
    return replace(line, image=image, mounts=options.mounts, hosts=expected.nodes)


def _alone(plan: Plan, nodes: Sequence[str], options: LaunchOptions) -> bool:
    """Whether it is certain that all ranks run on this host.

    So it is of a Hydra that nothing names hosts to; a user's launcher may start ranks anywhere, and Open MPI's may have a
    list of hosts in its prefix.
    """
    launcher = plan.launcher
    if nodes or options.allocation or find_allocation(options.environ):
        return False
    if is_in_image(launcher):
        return True
    own = plan.host.launcher if plan.host else None
    if own is None or own.path != launcher.path or kind_of(launcher) != "hydra":
        return False
    return nodes_of(plan.request.shape, None, options.environ) == 1


def _launched(
    prepared: Prepared,
    line: CommandLine,
    watched: _Watched,
    options: LaunchOptions,
) -> LaunchResult:
    # Open MPI's launcher has to clear up its session folder; Hydra would only print a page about it.
    startup, worlds, network = watched.startup, watched.worlds, watched.network
    folder, witnessed = startup.folder, bool(prepared.plan.witness)
    grace_s = launch.GRACE_S if prepared.plan.launcher.family is AbiFamily.OPENMPI else 0.0

    def look(signals: WarningSignals) -> None:
        if options.requeue:
            options.requeue.look(signals)
        if network:
            network.look()
        if witnessed:
            startup.look()
            worlds.look()

    try:
        result = launch.launch(
            line,
            folder,
            limits=launch.Limits(grace_s=grace_s, end_stopped=options.end_stopped),
            watch=look,
            streams=launch.Streams(options.stdout, options.stderr, options.stdin),
            environ=options.environ,
            on_finding=options.on_finding,
        )
        if network:
            network.last_look(options.on_finding)
        startup.last_look()
        for doubt in startup.besides():
            options.on_finding(doubt)
        worlds.look(last=True)
    except FairleadError as exc:
        lack = launch.lack_of_files(line, folder) if exc.code is ExitCode.WATCHDOG else None
        if lack is None:
            raise
        raise FairleadError(lack, exc.code) from None
    finally:
        preload.clear(folder)
    return result


def _check_records(result: LaunchResult, folder: Path) -> None:
    recorded = len(result.ranks)
    if recorded < result.started and not _has_room(folder):
        raise fail("run-folder-exit-codes", folder=folder, result=result, recorded=recorded)


def prove_it(
    prepared: Prepared,
    ranks: int,
    limit_s: float | None = None,
    environ: Mapping[str, str] = os.environ,
    env: Mapping[str, str] | None = None,
) -> Proof:
    """Stages what the plan stages, and probes it with ``ranks`` ranks.

    Args:
        env: variables for the container, as the command will have them.
    Raises:
        FairleadError: as :func:`fairlead.proof.probe_job.probe`; exit code 122 when the proof does not hold.
    """
    if prepared.plan.unknown_mpi:
        raise fail("probe-unknown-mpi", plan=prepared.plan)
    cache = cache_dir(environ)
    staging.ensure(prepared.plan, cache, environ)
    unpack.ensure(
        prepared.plan, cache, binds=(Bind(str(cache), preload.RUN_MOUNT),), environ=environ
    )
    still_as_verified(prepared)
    limit = limit_s or prepared.plan.site.start_s
    image = node_check.opened(prepared.plan, prepared.image, prepared.verified)
    proof = probe(prepared.plan, ranks, cache, environ, limit, env, image)
    still_as_verified(prepared)
    if not proof.holds:
        errors = [f for f in proof.findings if f.severity is Severity.ERROR]
        raise FairleadError(errors, ExitCode.PROOF_FAILED)
    return proof


def still_as_verified(prepared: Prepared) -> None:
    """Looks whether the image is still the file whose signature was checked, if it was, and whether what the engine opens
    still is what was made of it.

    Raises:
        FairleadError: it was written to or replaced.
    """
    if not prepared.verified:
        return
    signature.unchanged(prepared.verified)
    why, image = unpack.changed(prepared.plan), Path(prepared.image.path)
    if prepared.verified.statement.format == "oci" and not seals.holds(image):
        why = f"{image}, which was made of it, was written to or replaced"
    if why:
        raise signature.changed(prepared.verified, why)


def _has_room(folder: Path) -> bool:
    """Whether a record of a rank can be written there."""
    probe = folder / "room"
    try:
        probe.write_bytes(bytes(4096))
        probe.unlink()
    except OSError:
        return False
    return True


def _collective_core(
    folder: Path, cache: Path, environ: Mapping[str, str], progress: Progress | None
) -> dict[str, str]:
    """Lays the core of :mod:`fairlead.comm` into the run's folder; the variables that point to it."""
    if environ.get("FAIRLEAD_COMM_LIBRARY"):
        return {}
    try:
        core = native.path_of(native.CORE, cache)
        if not core.is_file() and not native.shipped(native.CORE):
            with (progress or Silent()).stage("collective core compiled"):
                native.ensure(native.CORE, cache, environ)
        native.ensure(native.CORE, cache, environ)
        operation = native.ensure(native.TENSORFLOW, cache, environ)
        for file, name in ((core, core.name), (operation, native.TENSORFLOW.name)):
            try:
                os.link(file, folder / name)
            except OSError:  # no hard links here
                shutil.copy(file, folder / name)
    except (FairleadError, OSError) as exc:
        why = exc.findings[0].why if isinstance(exc, FairleadError) else str(exc)
        return {"FAIRLEAD_COMM_NO_LIBRARY": " ".join(why.split())[:200]}
    return {"FAIRLEAD_COMM_LIBRARY": f"{preload.RUN_MOUNT}/{core.name}"}
