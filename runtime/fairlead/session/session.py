"""One run from facts to ranks: the steps that ``preflight``, ``explain``, ``run`` and ``train``
share, as plain functions that return data.

``prepare`` gathers facts, plans and checks; ``launch_proved`` stages, launches and proves the launch
while it runs; ``prove_it`` proves by a probe job of its own.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from fairlead import __version__, native
from fairlead import site as sites
from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity, fail
from fairlead.base.paths import cache_dir
from fairlead.base.progress import Progress, Silent
from fairlead.detect import capture, profile_capture
from fairlead.detect.capture import Capture
from fairlead.elf.facts import AbiFamily
from fairlead.elf.patchelf import find_patchelf
from fairlead.engines import registry as engines
from fairlead.image import keys, signature
from fairlead.image.open import Image, open_image
from fairlead.launch import choose_launcher, launch, shared_cache, unpack
from fairlead.launch.launch import CommandLine, LaunchResult
from fairlead.launchers import registry
from fairlead.launchers.model import Launcher
from fairlead.launchers.pmi import pmi_said
from fairlead.mpi.host import HostMpi, discover, from_prefix
from fairlead.proof import preload
from fairlead.proof.probe_job import probe
from fairlead.proof.verdict import Proof
from fairlead.schedulers.model import Allocation
from fairlead.schedulers.registry import find_allocation
from fairlead.session import gradients
from fairlead.session.gradients import CommChoice
from fairlead.site.engine_options import with_options
from fairlead.site.match import why_not
from fairlead.site.model import Site
from fairlead.site.resolved_paths import look, matches
from fairlead.swap import checks, staging
from fairlead.swap import plan as planning
from fairlead.swap.layout import Line
from fairlead.swap.plan import Bind, Plan, Request


@dataclass(frozen=True)
class Prepared:
    """A plan with the findings about it."""

    image: Image
    plan: Plan
    findings: tuple[Finding, ...]
    site_reason: str
    comm: CommChoice
    verified: signature.Verified | None = None

    @property
    def refused(self) -> bool:
        return checks.refused(self.findings)


@dataclass(frozen=True)
class Choices:
    """What the command line leaves to be chosen, and what it fixes.

    Attributes:
        mpi: ``host``, ``container``, or the prefix of an MPI.
        site, launcher, engine: None to detect.
        comm: the backend of gradients; None to leave it to variable, site and fairlead.
        require_signature: refuse an image that no trusted key has signed.
    """

    mpi: str = "host"
    site: str | None = None
    launcher: str | None = None
    engine: str | None = None
    require_signature: bool = False
    comm: str | None = None


def prepare(
    image_name: str,
    choices: Choices,
    request: Request,
    environ: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    *,
    elsewhere: bool = False,
) -> Prepared:
    """Gathers facts, plans and checks; launches nothing.

    Args:
        elsewhere: the plan may be one for the machine of a capture.
    Raises:
        FairleadError: 2 for bad input, 121 when nothing can be planned or a signature that is
            required does not hold, 123 without an engine.
    """
    there = _capture(choices, elsewhere)
    if there:
        site, reason = there.site, f"captured on {there.node}, {there.taken}"
    else:
        site, reason = sites.resolve(choices.site, environ)
    verified = None
    if choices.require_signature or site.require_signature or _signatures_wanted(environ):
        verified = _verified(image_name, environ, progress)  # before anything reads what is inside
    image = open_image(image_name, environ, progress)
    by_profile = there is None and elsewhere and _is_elsewhere(choices, site, environ)
    if by_profile:
        there = profile_capture.machine(site, image.facts)
    engine = (
        capture.engine_of(there)
        if there
        else engines.choose(choices.engine, site.engine.kinds, environ)
    )
    seen = there.here if there else look(site, environ)
    found = gradients.facts_of(
        image, site, seen, engine, request, environ, elsewhere=there is not None, unseen=by_profile
    )
    carried = gradients.choose(found)
    shows_gpus = request.gpu or carried.backend == "nccl"
    engine = with_options(engine, site, gpu=shows_gpus, own=request.engine_args)
    request = _with_images_own(request, image)
    mine = {*site.environment.set, *site.gpu.set}.intersection(environ)
    request = replace(request, shell=tuple(sorted(mine)))
    host, notes = _host(choices, image, environ, there, request, site)
    # What cannot be planned at all is told before a launcher is looked for in vain.
    planning.replaceable(
        image.path, image.facts, host, engine, request, notes, there.node if there else ""
    )
    launcher = _launcher(choices, host, image, request, environ, there, site)
    cache = cache_dir(environ)
    preload = native.witness_path(cache)
    able = there is not None or preload.is_file() or native.compiler(environ)
    result = planning.plan(
        image.path, image.facts, host, launcher, site, engine, request, cache, notes,
        str(preload) if able else "", bool(find_patchelf()), seen,
        unpack.opened(image, engine, cache),
    )  # fmt: skip
    result = gradients.onto(result, carried)
    findings = (
        *_versions(image),
        *(() if there or choices.launcher else _other_launcher(site, launcher)),
        *checks.check(result),
        *carried.findings,
        *_in_the_engines_words(result, there is not None),
        *(
            profile_capture.policy(site, choices.mpi)
            if choices.mpi in ("host", "container")
            else ()
        ),
        *(profile_capture.assumptions(site) if by_profile else _no_witness(result)),
        *(() if there else _another_machine(choices, site, environ)),
    )
    if verified:
        if verified.statement.format != "oci" and image.path != verified.path:
            raise signature.changed(verified, f"`{image_name}` is now {image.path}")
        signature.unchanged(verified)
        findings = (*findings, *filter(None, [signature.exposed(verified)]))
    return Prepared(image, result, findings, reason, carried, verified)


def _in_the_engines_words(plan: Plan, elsewhere: bool) -> tuple[Finding, ...]:
    """What the engine cannot be told: an image of another kind, a path that its words end at."""
    if plan.engine.kind not in engines.kinds():
        return ()
    try:
        launch.command_line(plan, plan.request.command or ("true",), plan.request.ranks)
    except FairleadError as exc:
        # The image can be brought into another form before it is taken there.
        severity = Severity.WARNING if elsewhere else Severity.ERROR
        return tuple(replace(finding, severity=severity) for finding in exc.findings)
    return ()


def _is_elsewhere(choices: Choices, site: Site, environ: Mapping[str, str]) -> bool:
    """Whether a site is asked about that this machine is not."""
    if choices.site is None or choices.mpi not in ("host", "container"):
        return False
    another = bool(why_not(site, environ)) or (
        bool(site.mpi.search) and not matches(site.mpi.search, environ)
    )
    return another and profile_capture.tells_enough(site)


def _another_machine(
    choices: Choices, site: Site, environ: Mapping[str, str]
) -> tuple[Finding, ...]:
    """A profile that was named is taken at its word; that it does not fit is told."""
    named = choices.site or environ.get(sites.CHOSEN)
    against = why_not(site, environ) if named else ()
    if not against:
        return ()
    return (
        Finding(
            Severity.WARNING,
            f"this machine does not look like {site.name}",
            f"named by {'--site' if choices.site else '$' + sites.CHOSEN}",
            "; ".join(against),
            "fairlead site detect says which profile fits",
            "site-named",
        ),
    )


def _with_images_own(request: Request, image: Image) -> Request:
    """The search path and preloads that the image itself sets stay, behind the user's.

    What the engine is told for the container would take their place.
    """
    own = image.env
    return replace(
        request,
        image_library_path=own.get("LD_LIBRARY_PATH", ""),
        image_preload=own.get("LD_PRELOAD", ""),
        image_env=own,
    )


def _signatures_wanted(environ: Mapping[str, str]) -> bool:
    return environ.get("FAIRLEAD_REQUIRE_SIGNATURE", "") not in ("", "0")


def _verified(
    image_name: str, environ: Mapping[str, str], progress: Progress | None
) -> signature.Verified:
    path = signature.located(image_name, environ, progress)
    try:
        return signature.verify(path, keys.trusted(environ), progress)
    except FairleadError as exc:
        raise FairleadError(exc.findings, ExitCode.PREFLIGHT_REFUSED) from None


def still_as_verified(prepared: Prepared) -> None:
    """Looks whether the image is still the file whose signature was checked, if it was.

    Raises:
        FairleadError: it was written to or replaced.
    """
    if prepared.verified:
        signature.unchanged(prepared.verified)


def _capture(choices: Choices, elsewhere: bool) -> Capture | None:
    """The capture that ``--site`` names, if it names one."""
    if choices.site is None or not capture.is_capture(choices.site):
        return None
    found = capture.read(Path(choices.site))
    if not elsewhere:
        raise fail(
            f"nothing can be launched on {found.node} from here",
            where="--site",
            why="a capture is enough to plan for a machine and to check the plan, not to be on it",
            remedy=f"fairlead preflight IMAGE --site {shlex.quote(choices.site)}",
            check="site-capture",
            code=ExitCode.USAGE,
        )
    return found


def _host(
    choices: Choices,
    image: Image,
    environ: Mapping[str, str],
    there: Capture | None,
    request: Request,
    site: Site,
) -> tuple[HostMpi | None, tuple[Line, ...]]:
    started = choices.launcher is not None and choices.launcher in registry.LAUNCHERS
    started = started or (
        not there and not choices.launcher and bool(choose_launcher.here(site, environ))
    )
    if choices.mpi not in ("host", "container"):
        prefix = Path(choices.mpi)
        named = (
            capture.mpi_below(there, prefix) if there else from_prefix(prefix, environ, site=site)
        )
        family = planning.image_family(image.facts, planning.programs_of(request))
        own = next((m for m in named if m.library.family is family), None)
        # What nobody would choose is refused by the checks, which say why.
        return own or planning.choose_host(image.facts, named, request, started)[0] or named[0], ()
    mpis = there.mpis if there else discover(environ, site=site)
    return planning.choose_host(image.facts, mpis, request, started or bool(choices.launcher))


def _launcher(
    choices: Choices,
    host: HostMpi | None,
    image: Image,
    request: Request,
    environ: Mapping[str, str],
    there: Capture | None,
    site: Site,
) -> Launcher:
    wanted = planning.image_family(image.facts, planning.programs_of(request))
    speaks = planning.speaks(
        host.library if host else planning.own_mpi(image.facts, wanted), wanted
    )
    pmi = pmi_said(request.shape.extra)
    if choices.launcher and there:
        captured = {m.launcher.path: m.launcher for m in there.mpis if m.launcher}
        if choices.launcher not in captured:
            raise fail(
                f"no launcher {choices.launcher} was captured",
                where="--launcher",
                why=f"the capture of {there.node} has {', '.join(captured) or 'none'}",
                remedy="leave it out to use the mpiexec of the chosen MPI",
                check="launcher",
                code=ExitCode.USAGE,
            )
        return captured[choices.launcher]
    options = tuple(site.launcher.options.get("mpiexec", ()))
    own = host.launcher if host else None
    if own and choices.launcher == registry.kind_of(own):
        return replace(own, options=tuple(site.launcher.options.get(choices.launcher, options)))
    if choices.launcher and choices.launcher != "mpiexec":
        if choose_launcher.is_kind(choices.launcher):
            return choose_launcher.of_kind(choices.launcher, speaks, site, environ, pmi=pmi)
        return choose_launcher.named(choices.launcher, speaks, site, environ)
    if not choices.launcher and not there and (found := choose_launcher.here(site, environ)):
        return choose_launcher.of_kind(found[0], speaks, site, environ, found[1], pmi)
    if own:
        return replace(own, options=options)
    for other in there.mpis if there else discover(environ):
        if other.launcher and other.launcher.family is wanted:
            return replace(other.launcher, options=options)
    raise fail(
        f"no launcher for the {wanted} family on {there.node if there else 'this host'}",
        where=host.prefix if host else "the MPIs of that machine" if there else "the MPIs here",
        why="no mpiexec was found beside an MPI of that family",
        remedy="fairlead doctor --fix host-mpi, or name one with `--launcher PATH`",
        check="launcher",
        code=ExitCode.PREFLIGHT_REFUSED,
    )


def _versions(image: Image) -> tuple[Finding, ...]:
    """Host and image hold the same fairlead, or the one may not understand the other."""
    inside = image.record.get("fairlead_version", "")
    if inside and inside != __version__:
        return (
            Finding(
                Severity.ERROR,
                f"the image holds fairlead {inside}, this is {__version__}",
                image.path,
                "the two halves of fairlead talk to each other and must be of one version",
                f"fairlead build {image.record.get('recipe', 'RECIPE')}",
                "version-skew",
            ),
        )
    return ()


def _has_room(folder: Path) -> bool:
    """Whether a record of a rank can be written there."""
    probe = folder / "room"
    try:
        probe.write_bytes(bytes(4096))
        probe.unlink()
    except OSError:
        return False
    return True


def _other_launcher(site: Site, launcher: Launcher) -> tuple[Finding, ...]:
    """The site's own launcher is not here, and another takes its place: not in silence."""
    kinds = site.launcher.kinds
    if "mpiexec" in kinds or registry.kind_of(launcher) in kinds or launcher.kind in kinds:
        return ()
    return (
        Finding(
            Severity.WARNING,
            f"{' or '.join(kinds)} of site {site.name} is not on PATH",
            "PATH",
            f"{launcher.path} will start the ranks instead, on the nodes that it knows",
            "load the module that brings it; or say that you mean it: --launcher mpiexec",
            "launcher",
        ),
    )


def _collective_core(
    folder: Path, cache: Path, environ: Mapping[str, str], progress: Progress | None
) -> dict[str, str]:
    """Lays the core of :mod:`fairlead.comm` into the run's folder; the variables that tell of it."""
    if environ.get("FAIRLEAD_COMM_LIBRARY"):
        return {}
    try:
        core = native.core_path(cache)
        if not core.is_file():
            with (progress or Silent()).stage("collective core compiled"):
                native.ensure_core(cache, environ)
        try:
            os.link(core, folder / core.name)
        except OSError:  # no hard links here
            shutil.copy(core, folder / core.name)
    except (FairleadError, OSError) as exc:
        why = exc.findings[0].why if isinstance(exc, FairleadError) else str(exc)
        return {"FAIRLEAD_COMM_NO_LIBRARY": " ".join(why.split())[:200]}
    return {"FAIRLEAD_COMM_LIBRARY": f"{preload.RUN_MOUNT}/{core.name}"}


def _no_witness(plan: Plan) -> tuple[Finding, ...]:
    if plan.witness:
        return ()
    return (
        Finding(
            Severity.INFO,
            "the proof will be a job of its own, before the launch",
            "this machine",
            "there is no C compiler (cc, gcc, clang, or what CC names) to make the witness with, "
            "which proves the very launch",
            "install gcc",
            "witness",
        ),
    )


def refuse(prepared: Prepared) -> FairleadError:
    """The error of a refused preflight: exit code 121."""
    errors = [f for f in prepared.findings if f.severity is Severity.ERROR]
    return FairleadError(errors, ExitCode.PREFLIGHT_REFUSED)


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
    cache = cache_dir(environ)
    staging.ensure(prepared.plan, cache)
    unpack.ensure(
        prepared.plan, cache, binds=(Bind(str(cache), preload.RUN_MOUNT),), environ=environ
    )
    still_as_verified(prepared)
    limit = limit_s or prepared.plan.site.start_s
    proof = probe(prepared.plan, ranks, cache, environ, limit, env)
    still_as_verified(prepared)
    if not proof.holds:
        errors = [f for f in proof.findings if f.severity is Severity.ERROR]
        raise FairleadError(errors, ExitCode.PROOF_FAILED)
    return proof


@dataclass(frozen=True)
class Launched:
    """A launch that has ended.

    Attributes:
        proof: None when the command never started MPI.
    """

    line: CommandLine
    result: LaunchResult
    proof: Proof | None


def launch_proved(
    prepared: Prepared,
    command: Sequence[str],
    ranks: int,
    *,
    told: Callable[[Proof], None] = lambda proof: None,
    noted: Callable[[Finding], None] = lambda finding: None,
    begins: Callable[[], None] = lambda: None,
    allocation: Allocation | None = None,
    probe_first: bool = False,
    limit_s: float | None = None,
    binds: Sequence[Bind] = (),
    workdir: str = "",
    env: Mapping[str, str] | None = None,
    environ: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    stdout: IO[bytes] | int | None = None,
    stderr: IO[bytes] | int | None = None,
    stdin: int | None = None,
) -> Launched:
    """Stages what the plan stages, launches the command, and proves the launch from within it.

    Args:
        told: called with the proof as soon as MPI has started on every rank, also with one that does
            not hold.
        noted: called with what was seen on the way, before the launch.
        begins: called when all is staged and the launcher is about to start.
        allocation: whose nodes the watchdog names; that of ``environ`` otherwise.
        probe_first: also prove by a job of its own, before.
        limit_s: how long the start-up may make no progress; the site's own by default.
        env: variables for the container.
    Raises:
        FairleadError: exit code 122 when the ranks are not as planned, 124 when the start-up does
            not get on, 123 when engine or launcher cannot start it. When it failed before MPI had
            started, a probe looks for the cause.
    """
    plan, cache = prepared.plan, cache_dir(environ)
    limit = limit_s or plan.site.start_s
    if plan.witness:
        native.ensure_witness(cache, environ)
    staging.ensure(plan, cache)
    run_folder = Bind(str(cache), preload.RUN_MOUNT)
    unpack.ensure(plan, cache, progress, (run_folder, *binds), environ)
    proof = None
    if probe_first or not plan.witness:
        proof = prove_it(prepared, ranks, limit_s, environ, env)
        told(proof)
    still_as_verified(prepared)
    shape = plan.request.shape
    allocation = allocation or find_allocation(environ)
    if allocation and not shape.nodes:
        shape = replace(shape, nodes=min(allocation.nodes, ranks))
    if warned := shared_cache.seen_by_all(cache, shape, plan.launcher, environ):
        noted(warned)
    folder = launch.new_run_folder(cache)
    inode = staging.planned_inode(plan, cache)
    logs = ("UCX_LOG_LEVEL", "UCX_LOG_FILE")
    quiet = not any(name in (env or {}) or name in environ for name in logs)
    variables, more = preload.asked(plan, ranks, inode, folder, ucx=quiet)
    told_of_core = _collective_core(folder, cache, environ, progress) if more else {}
    line = launch.command_line(
        plan, command, ranks, (*more, *binds), record=folder, workdir=workdir,
        env={**told_of_core, **(env or {}), **variables},
    )  # fmt: skip
    nodes = allocation.hosts if allocation else plan.request.shape.hosts
    begins()
    startup = preload.Startup(plan, ranks, inode, folder, limit, told, nodes=nodes)
    try:
        result = launch.launch(
            line, folder, watch=startup.look if plan.witness else lambda: None,
            abrupt=plan.launcher.family is not AbiFamily.OPENMPI,
            stdout=stdout, stderr=stderr, stdin=stdin, environ=environ,
        )  # fmt: skip
        startup.last_look()
    finally:
        preload.clear(folder)
    still_as_verified(prepared)
    if len(result.ranks) < result.started and not _has_room(folder):
        raise fail(
            "the ranks could not write down how they ended",
            where=str(folder),
            why=f"{result.started} were started and {len(result.ranks)} wrote: there is no room left",
            remedy="free some space, or set XDG_CACHE_HOME to a folder with room; the command has run",
            check="run-folder",
            code=ExitCode.LAUNCH_FAILED,
        )
    if result.code and not (startup.proof or proof):
        prove_it(prepared, ranks, limit_s, environ, env)  # raises what it finds
    return Launched(line, result, startup.proof or proof)
