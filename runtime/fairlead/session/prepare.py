"""From a request to a checked plan: the steps that ``preflight``, ``explain``, ``run`` and ``train`` share."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairlead import __version__, native
from fairlead import site as sites
from fairlead.base.errors import (
    ExitCode,
    FairleadError,
    Finding,
    Severity,
    error,
    fail,
    info,
    warning,
)
from fairlead.base.paths import cache_dir
from fairlead.base.progress import Progress
from fairlead.detect import capture, profile_capture
from fairlead.detect.capture import Capture
from fairlead.elf.facts import AbiFamily, ImageFacts
from fairlead.elf.patchelf import find_patchelf
from fairlead.engines import registry as engines
from fairlead.engines.model import Engine
from fairlead.image import keys, signature
from fairlead.image.open import Image, open_image
from fairlead.launch import launch, unpack
from fairlead.launch.request import nodes_of
from fairlead.launchers import registry
from fairlead.launchers.model import Launcher
from fairlead.rendezvous import dead_ends
from fairlead.schedulers.registry import find_allocation
from fairlead.session import carry, gradients, network
from fairlead.session.choose import (
    Situation,
    host_mpi,
    launcher_for,
    launchers_named,
    outside,
    python_files,
    python_modules,
    texts,
)
from fairlead.session.gradients import CommChoice
from fairlead.session.model import Choices, Prepared
from fairlead.site.engine_options import with_options
from fairlead.site.match import foreign_network, why_not
from fairlead.site.model import Site
from fairlead.site.resolved_paths import look, matches
from fairlead.swap import checks
from fairlead.swap.family import replaceable
from fairlead.swap.model import Inputs, Plan, Request
from fairlead.swap.plan import plan
from fairlead.swap.reach import in_image, in_text, reach, texts_within


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
        elsewhere: the plan may be one for another machine.
    Raises:
        FairleadError: 2 for bad input, 121 when nothing can be planned or a required signature does not
            hold, 123 without an engine.
    """
    there, verified = _capture(choices, elsewhere), None
    if there:
        site, reason = there.site, f"captured on {there.node}, {there.taken}"
    else:
        site, reason = sites.resolve(choices.site, environ)
    by_variable = environ.get("FAIRLEAD_REQUIRE_SIGNATURE", "") not in ("", "0")
    if choices.require_signature or site.require_signature or by_variable:
        verified = _verified(image_name, environ, progress)  # before anything reads what is inside
    image = open_image(image_name, environ, progress)
    by_profile = there is None and elsewhere and _is_elsewhere(choices, site, environ)
    if by_profile:
        there = profile_capture.machine(site, image.facts)
    if there:
        paths, engine = there.here, capture.engine_of(there)
    else:
        engine = engines.choose(choices.engine, site.engine.kinds, environ)
        paths = look(site, environ)
    request = _with_images_own(request, image)
    request = replace(request, outside=outside(request, image.facts, elsewhere=there is not None))
    if there is None:
        request = replace(
            request,
            texts=texts(request, image.facts),
            python=python_files(request, image.facts),
            python_modules=python_modules(request, image.facts, environ),
        )
    situation, comm = _with_gradients(
        Situation(choices, image, request, site, there, by_profile, paths, engine, environ)
    )
    nodes = _nodes(request, choices, environ)
    planned = gradients.onto(_plan(situation, nodes, comm.on_gpus), comm)
    findings = (
        *_findings(planned, situation, comm),
        *_of_unpacking(planned, situation, nodes),
        *dead_ends.refused(image_name, request.command, request.ranks, nodes),
        *dead_ends.within(image_name, texts_within(image.facts, request), request.ranks, nodes),
        *dead_ends.named(image_name, launchers_named(request, image.facts), request.ranks),
        *_still_signed(verified, image, image_name),
    )
    return Prepared(image, planned, findings, reason, comm, verified)


def _nodes(request: Request, choices: Choices, environ: Mapping[str, str]) -> int:
    """On how many nodes the ranks will run; 0 where only the launcher knows."""
    if choices.launcher:  # a user's own may start them anywhere
        return request.shape.filled
    try:
        allocation = find_allocation(environ)
    except FairleadError:  # reported where it matters
        allocation = None
    return nodes_of(request.shape, allocation, environ)


def _with_gradients(situation: Situation) -> tuple[Situation, CommChoice]:
    """What carries gradients, and what follows for the engine and the request."""
    site, request, environ = situation.site, situation.request, situation.environ
    facts = gradients.facts_of(
        situation.image, site, situation.paths, situation.engine, request, environ,
        elsewhere=situation.capture is not None,
    )  # fmt: skip
    comm = gradients.choose(replace(facts, unseen=situation.by_profile))
    shows_gpus = request.gpu or comm.on_gpus
    engine = with_options(situation.engine, site, gpu=shows_gpus, own=request.engine_args)
    set_by_shell = {*site.environment.set, *site.gpu.set}.intersection(environ)
    request = replace(request, shell=tuple(sorted(set_by_shell)))
    return replace(situation, engine=engine, request=request), comm


def _plan(situation: Situation, nodes: int, on_gpus: bool) -> Plan:
    image, environ = situation.image, situation.environ
    host, notes = host_mpi(situation)
    request = replace(situation.request, family=host.library.family if host else None)
    situation = replace(situation, request=request)
    # What cannot be planned at all is reported before a launcher is looked for.
    node = situation.capture.node if situation.capture else ""
    replaceable(image.path, image.facts, host, situation.engine, request, notes, node)
    cache = cache_dir(environ)
    unknown = request.mpi == "container" and situation.family is AbiFamily.UNKNOWN
    library = native.witness(calls=unknown)
    witness = native.path_of(library, cache)
    can_witness = situation.capture is not None or native.available(library, cache, environ)
    launcher = launcher_for(situation, host)
    return plan(
        Inputs(
            image=image.path,
            facts=image.facts,
            host=host,
            launcher=launcher,
            site=situation.site,
            engine=_joined(situation, launcher, nodes),
            request=request,
            cache=cache,
            notes=notes,
            witness=str(witness) if can_witness else "",
            isolate=bool(find_patchelf()),
            paths=situation.paths,
            opened=unpack.opened(image, situation.engine, cache, folder=bool(_unpacks(situation))),
            nccl=network.ask(situation, nodes, on_gpus, host if request.mpi == "host" else None),
            carried=carry.carried(situation),
        )
    )


def _joined(situation: Situation, launcher: Launcher, nodes: int) -> Engine:
    """The engine, which joins ranks of a node in one container where each would have a user namespace."""
    engine, request = situation.engine, situation.request
    alone = request.ranks <= max(nodes, 1) or request.shape.per_node == 1
    elsewhere = situation.capture is not None or engine.kind not in engines.ENGINES
    if (
        not engine.userns_per_rank or alone or elsewhere
        or situation.choices.container_per_rank or registry.is_in_image(launcher)
        or not _has_shell(situation.image.facts)
    ):  # fmt: skip
        return engine
    driver = engines.ENGINES.get(engine.kind)
    return replace(engine, joins=driver.can_join(engine, request.engine_args, situation.environ))


def _has_shell(facts: ImageFacts) -> bool:
    """Whether an image has what keeps a container open for ranks to join; those without a shell are for one program alone."""
    return not facts.programs or in_image(facts, "/bin/sh")


def _unpacks(situation: Situation) -> str:
    """What asks for an unpacked image: the option, or the profile; empty if nothing does."""
    if situation.choices.unpack:
        return "--unpack"
    return "`images.unpack` of the site profile" if situation.site.images.unpack else ""


def _of_unpacking(plan: Plan, situation: Situation, nodes: int) -> Iterator[Finding]:
    by = _unpacks(situation)
    if by and situation.capture is None:
        yield from unpack.objections(plan, by, nodes)


def _findings(planned: Plan, situation: Situation, comm: CommChoice) -> Iterator[Finding]:
    """Everything that is to be said of a plan: of the image, the checks, the engine, the machine."""
    choices, site, there = situation.choices, situation.site, situation.capture
    if not situation.image.looked:
        yield warning("facts-unverified", path=situation.image.path)
    yield from _versions(situation.image, situation.request.command)
    if not there and not choices.launcher:
        yield from _other_launcher(site, planned.launcher)
    if not there:
        yield from _objection(planned, situation.environ)
        folder = situation.image.format == "sandbox" or unpack.is_folder(planned)
        yield from _privileged(planned, folder)
        yield from unpack.without_places(planned)
    yield from checks.check(planned)
    yield from comm.findings
    yield from _of_the_engine(planned, elsewhere=there is not None)
    yield from carry.findings(situation)
    if choices.mpi in ("host", "container"):
        yield from profile_capture.policy(site, choices.mpi)
    if situation.by_profile:
        yield from profile_capture.assumptions(site)
    elif not planned.witness:
        yield info("witness")
    yield from _strange_profile(planned)
    if not there:
        yield from _another_machine(choices, site, situation.environ)


def _strange_profile(plan: Plan) -> Iterator[Finding]:
    """What a profile adds to a launch that comes from a file which nobody has installed."""
    site, why = plan.site, plan.site.says("binds.paths")
    parts = {
        "binds": [line.what for line in plan.lines if line.kind == "bind" and line.why == why],
        "sets": [*site.environment.set, *site.gpu.set, *(site.nccl.env if plan.nccl else ())],
        "brings NCCL's plugin": [plan.nccl.host.plugin.path] if plan.nccl else [],
        f"gives {plan.engine.kind}": site.engine.options.get(plan.engine.kind, ()),
        "gives the launcher": plan.launcher.options,
    }
    added = "; ".join(f"{does} {', '.join(what)}" for does, what in parts.items() if what)
    if site.strange and added:
        yield info("site-strange", site=site, added=added)


def _still_signed(
    verified: signature.Verified | None, image: Image, image_name: str
) -> tuple[Finding, ...]:
    if verified is None:
        return ()
    if verified.statement.format != "oci" and image.path != verified.path:
        raise signature.changed(verified, f"`{image_name}` is now {image.path}")
    signed = verified.statement.squashfs_sha256
    if verified.statement.format != "oci" and image.digest != signed:
        why = f"what is inside has sha256 {image.digest[:16]}…, {signed[:16]}… was verified"
        raise signature.changed(verified, why)
    signature.unchanged(verified)
    return tuple(filter(None, [signature.exposed(verified)]))


def _of_the_engine(plan: Plan, *, elsewhere: bool) -> tuple[Finding, ...]:
    """What the engine cannot express: an image of another kind, a path with its separator in it."""
    if plan.engine.kind not in engines.kinds():
        return ()
    try:
        launch.command_line(plan, plan.request.command or ("true",), plan.request.ranks)
    except FairleadError as exc:
        # The image can be brought into another form before it is taken there.
        severity = Severity.WARNING if elsewhere else Severity.ERROR
        return tuple(replace(finding, severity=severity) for finding in exc.findings)
    other = (
        None
        if elsewhere
        else engines.other_image(plan.engine, plan.image, plan.request.engine_args)
    )
    return (other,) if other else ()


def _is_elsewhere(choices: Choices, site: Site, environ: Mapping[str, str]) -> bool:
    """Whether a site is asked about that this machine is not."""
    if choices.site is None or choices.mpi not in ("host", "container"):
        return False
    another = bool(why_not(site, environ)) or (
        bool(site.mpi.search) and not matches(site.mpi.search, environ)
    )
    return another and profile_capture.tells_enough(site)


def _another_machine(choices: Choices, site: Site, environ: Mapping[str, str]) -> Iterator[Finding]:
    """A profile that was named is taken at its word; that it does not fit is reported, and so is another network."""
    named = choices.site or environ.get(sites.CHOSEN)
    if against := why_not(site, environ) if named else ():
        by = "--site" if choices.site else "$" + sites.CHOSEN
        yield warning("site-named", site=site, by=by, against="; ".join(against))
    elif other := foreign_network(site, environ):
        yield warning("site-fabric", site=site, other=other)


def _with_images_own(request: Request, image: Image) -> Request:
    """The search path and preloads that the image itself sets stay, behind the user's.

    Variables that the engine sets in the container would replace them.
    """
    own = image.env
    return replace(
        request,
        image_library_path=own.get("LD_LIBRARY_PATH", ""),
        image_preload=own.get("LD_PRELOAD", ""),
        image_env=own,
    )


def _verified(
    image_name: str, environ: Mapping[str, str], progress: Progress | None
) -> signature.Verified:
    path = signature.located(image_name, environ, progress)
    try:
        return signature.verify(path, keys.trusted(environ), progress)
    except FairleadError as exc:
        raise FairleadError(exc.findings, ExitCode.PREFLIGHT_REFUSED) from None


def _capture(choices: Choices, elsewhere: bool) -> Capture | None:
    """The capture that ``--site`` names, if it names one."""
    if choices.site is None or not capture.is_capture(choices.site):
        return None
    recorded = capture.read(Path(choices.site))
    if not elsewhere:
        raise fail("site-capture-cannot-launch", found=recorded, site=shlex.quote(choices.site))
    return recorded


def _versions(image: Image, command: Sequence[str]) -> Iterator[Finding]:
    """Host and image hold the same fairlead, or the one may not understand the other."""
    inside = image.record.get("fairlead_version", "")
    module = next((word for word in command if re.match(r"fairlead(\.|$)", word)), "")
    if module:
        yield from needs_fairlead(image, module)
    if inside and inside != __version__ and not _without_fairlead(image):
        recipe = image.record.get("recipe", "RECIPE")
        yield error("version-skew", inside=inside, version=__version__, image=image, recipe=recipe)


def needs_fairlead(image: Image, module: str) -> Iterator[Finding]:
    """An image that our builder made for a Python too old for fairlead cannot run ``module`` of it."""
    if _without_fairlead(image):
        python = image.record.get("python", {}).get("version", "")
        yield error("image-without-fairlead", module=module, image=image, python=python)


def _without_fairlead(image: Image) -> bool:
    """Whether our builder made it, and left fairlead out."""
    return bool(image.record.get("fairlead_version")) and image.record.get("wheel_sha256") == ""


def _other_launcher(site: Site, launcher: Launcher) -> Iterator[Finding]:
    """The site's own launcher is not here, and another takes its place: not in silence."""
    kinds = site.launcher.kinds
    if not {"mpiexec", registry.kind_of(launcher), launcher.kind}.intersection(kinds):
        absent = " or ".join(kinds)
        yield warning("launcher-site-not-on-path", kinds=absent, site=site, launcher=launcher)


def _objection(plan: Plan, environ: Mapping[str, str]) -> Iterator[Finding]:
    """The launcher would refuse this user."""
    objection = registry.objection(plan.launcher, plan.request.shape, os.geteuid(), environ)
    if objection:
        yield objection


def _privileged(plan: Plan, folder: bool) -> Iterator[Finding]:
    """Programs that start with other rights than their rank, where they cannot.

    Args:
        folder: the image is one; Apptainer makes no overlay of it.
    """
    facts, engine = plan.facts, plan.engine
    family = plan.host.library.family if plan.host else plan.family
    set_ids = facts.set_ids if os.geteuid() == 0 else {}
    no_overlay = (
        engines.ENGINES.get(engine.kind).no_overlay if engine.kind in engines.ENGINES else ""
    )
    plain = folder or not engine.userns_per_rank or no_overlay in plan.request.engine_args
    capable = facts.capable if no_overlay and not plain else ()
    reached = reach(facts, plan.request)
    for path in sorted({*(p.path for p in reached.programs), *in_text(facts, reached)}):
        if path in set_ids and family is AbiFamily.OPENMPI:
            yield error("program-set-id", path=path)
        if name := set_ids.get(path):
            yield error("program-set-id-library", path=path, name=name)
        if path in capable:
            yield error("program-capabilities", path=path, engine=engine, option=no_overlay)


def refuse(prepared: Prepared) -> FairleadError:
    """The error of a refused preflight: exit code 121."""
    errors = [f for f in prepared.findings if f.severity is Severity.ERROR]
    return FairleadError(errors, ExitCode.PREFLIGHT_REFUSED)
