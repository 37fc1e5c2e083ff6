"""The plan: which library replaces which in a container, why that is safe, and how it is done.

:func:`plan` is a pure function, written as a fold: each named step and each remedy takes a draft and returns
the next. It reads no disk, and equal facts give equal plans. :mod:`~fairlead.swap.checks` predicts whether a
plan will work, :mod:`~fairlead.swap.staging` creates its staged folder, and :mod:`~fairlead.swap.layout` decides
what is staged under which names.
"""

from __future__ import annotations

from dataclasses import replace

from fairlead.base.errors import fail
from fairlead.elf.facts import AbiFamily, MpiLibrary
from fairlead.elf.mpi_symbols import asked_by
from fairlead.launchers.model import Launcher
from fairlead.launchers.registry import is_in_image
from fairlead.mpi.cross_abi import crossing
from fairlead.mpi.host import HostMpi
from fairlead.rendezvous.choose import frameworks
from fairlead.swap import shell_folders
from fairlead.swap.carry import with_carried
from fairlead.swap.family import in_reach, names_of, own_library, own_place, replaceable
from fairlead.swap.fortran import suited
from fairlead.swap.glibc import choose_glibc
from fairlead.swap.layout import folders_behind, module_paths, search_folders, stage_layout
from fairlead.swap.model import MOUNT, WITNESS, Bind, Inputs, Line, Plan
from fairlead.swap.network import own_devices, with_network
from fairlead.swap.reach import interpreted, relevant
from fairlead.swap.remedies.model import Changes, Draft, Phase, Remedy
from fairlead.swap.remedies.registry import ordered
from fairlead.swap.shell_mpi import WHY, withheld
from fairlead.swap.shell_python import OTHER, REMOVED
from fairlead.swap.site_rules import from_site


def plan(inputs: Inputs) -> Plan:
    """Plans to run an image on the host's MPI, or on its own MPI if ``request.mpi == "container"``.

    Raises:
        FairleadError: exit code 121; no plan is possible. :func:`fairlead.swap.checks.check` finds
            plans that are possible but will not work.
    """
    draft = _begun(inputs)
    remedies = [remedy for remedy in ordered() if remedy.applies(draft)]
    draft = _host_staged(draft, remedies) if inputs.swapped_in else _own_kept(draft)
    draft = _finished(draft, remedies, Phase.LOADING)
    draft = with_network(with_carried(_site_rules(_modules(_search_path(draft)))))
    draft = _python(_finished(draft, remedies, Phase.RUNNING))
    draft = _preloads(draft)
    draft = _finished(draft, remedies, Phase.SHOWING)
    return _planned(_described(draft))


def _begun(inputs: Inputs) -> Draft:
    """The first draft: the family to map, the files that map it, and the gap between the C libraries."""
    facts, host = inputs.facts, inputs.swapped_in
    own_family = replaceable(
        inputs.image, facts, inputs.host, inputs.engine, inputs.request, inputs.notes
    )
    family, consumers = own_family, relevant(facts, inputs.request, own_family)
    if host is not None and host.library.family is not own_family:
        reached = in_reach(facts, inputs.request)
        over = crossing(reached, interpreted(facts, inputs.request), host.library.family)
        if over.allowed:
            family = host.library.family
            crossing_too = (
                e for e in relevant(facts, inputs.request, family) if asked_by(facts, e)
            )
            compiled = [e for e in crossing_too if not e.interpreter and e not in over.modules]
            consumers = (*over.modules, *compiled)
    glibc = choose_glibc(host, facts, inputs.engine) if host else None
    own = own_library(facts, inputs.request)
    lines: tuple[Line, ...] = ()
    if host is not None:
        fitting = suited(host, facts, consumers)
        left = (e for e in host.companions if e not in fitting.companions)
        why = "another compiler's: the image's own stays, whose array descriptors its programs use"
        lines = tuple(Line("left out", e.name, why, e.path) for e in left)
        inputs = replace(inputs, host=fitting)
    return Draft(inputs, own, own_family, family, consumers, glibc, lines=lines)


def _finished(draft: Draft, remedies: list[Remedy], phase: Phase) -> Draft:
    for remedy in remedies:
        if remedy.phase is phase:
            draft = remedy.finish(draft)
    return draft


def _host_staged(draft: Draft, remedies: list[Remedy]) -> Draft:
    """Puts the host's MPI into a staged folder, with the files that remedies add."""
    inputs, host = draft.inputs, draft.inputs.swapped_in
    assert host is not None
    parts = [remedy.stage(draft) for remedy in remedies]
    staging, lines = stage_layout(
        host, inputs.facts, parts, isolate=inputs.isolate, alone=inputs.alone
    )
    folder = inputs.cache / "stage" / staging.key
    what, why = f"{folder} -> {MOUNT} (read-only)", "the staged host MPI, seen in the container"
    lines = (_replaces(draft.own, host, draft.own_family), *lines, Line("bind", what, why))
    file, title = f"{MOUNT}/lib/{host.library.soname}", host.library.title
    draft = replace(draft, staging=staging, folder=folder, planned_file=file, planned_title=title)
    return draft.plus(Changes((Bind(str(folder), MOUNT, read_only=True),), lines=lines))


def _own_kept(draft: Draft) -> Draft:
    """Keeps the image's MPI, for ``--mpi container``."""
    path, title = own_place(draft.inputs.facts, draft.inputs.request)
    if not path:
        raise fail("image-mpi-missing", image=draft.inputs.image)
    line = Line("keep", f"{title} of the image", "--mpi container asks for it", path)
    kept = replace(draft, planned_file=path, planned_title=title)
    return kept.plus(Changes(lines=(line,)))


def _search_path(draft: Draft) -> Draft:
    """Sets LD_LIBRARY_PATH: the host's MPI first, then the user's folders, then the image's."""
    request, host = draft.inputs.request, draft.inputs.swapped_in
    behind = folders_behind(request)
    if host is None:
        if not request.library_path:
            return draft
        path, why = ":".join(behind), "the user's own"
    elif draft.wrapper:
        return draft  # the wrapper sets the path
    else:
        assert draft.staging is not None
        folders = search_folders(draft.staging, host, apart=bool(draft.bound or behind))
        path = ":".join((*folders, *behind))
        why = "searched before the image's own library folders and its RUNPATHs"
        why += "; the user's own entries follow" if request.library_path else ""
    lines = (
        Line("env", f"LD_LIBRARY_PATH={path}", why),
        *_images_own("LD_LIBRARY_PATH", request.image_library_path),
    )
    return draft.plus(Changes(env={"LD_LIBRARY_PATH": path}, lines=lines))


def _modules(draft: Draft) -> Draft:
    """Points the host's libfabric and UCX to the host's modules."""
    host = draft.inputs.swapped_in
    if host is None or draft.staging is None:
        return draft
    env = module_paths(draft.staging, host)
    why = "the host's modules, not the image's: mixed ones crash"
    lines = tuple(Line("env", f"{name}={value}", why) for name, value in env.items())
    return draft.plus(Changes(env=env, lines=lines))


def _site_rules(draft: Draft) -> Draft:
    """Adds the site profile's binds and variables. Variables of the swap take precedence."""
    inputs = draft.inputs
    site = from_site(inputs.site, inputs.paths, inputs.request)
    draft = replace(draft, env={**site.env, **draft.env})
    return draft.plus(replace(site, env={}))


def _preloads(draft: Draft) -> Draft:
    """Sets LD_PRELOAD. The witness precedes the user's libraries, so that it also sees a tracer's MPI_Init."""
    request, witness = draft.inputs.request, draft.inputs.witness
    libraries = (WITNESS if witness else "", *(library for library, _ in draft.preload))
    preload = ":".join(filter(None, (*libraries, request.preload, request.image_preload)))
    if not preload or preload == request.image_preload:
        return draft
    binds: tuple[Bind, ...] = ()
    lines: list[Line] = []
    why = "the user's own, kept"
    if witness:
        why = "sees the program's own MPI_Init and proves what it came to"
        binds = (Bind(witness, WITNESS, read_only=True),)
        lines.append(Line("bind", f"{witness} -> {WITNESS} (read-only)", why))
        why += "; the user's own follows" if request.preload else ""
    why = "; ".join((why, *(reason for _, reason in draft.preload)))
    lines.append(Line("env", f"LD_PRELOAD={preload}", why))
    lines += _images_own("LD_PRELOAD", request.image_preload)
    return draft.plus(Changes(binds, {"LD_PRELOAD": preload}, tuple(lines)))


def _python(draft: Draft) -> Draft:
    """Passes the shell's harmless variables for Python on."""
    request = draft.inputs.request
    env = {name: value for name, value in request.python_env if name not in draft.env}
    lines = [Line("env", f"{name}={value}", "set in this shell") for name, value in env.items()]
    return draft.plus(Changes(env=env, lines=tuple(lines)))


def _described(draft: Draft) -> Draft:
    """Adds lines on what no step covers: the shell's Python variables, the engine, the launcher."""
    inputs = draft.inputs
    lines = [
        Line("unset", name, f"set in this shell: {REMOVED.get(name, OTHER)}; --env sets it there")
        for name in inputs.request.shell_python
    ]
    why = f"set in this shell: {WHY}; --env sets it there"
    lines += [Line("unset", name, why) for name in inputs.request.shell_mpi]
    why = f"set in this shell: {shell_folders.WHY}; --bind shows it, --env sets it there"
    lines += [Line("unset", name, why) for name in _hidden(draft)]
    engine = inputs.engine
    if inputs.opened and inputs.opened != inputs.image:
        form = "a folder: the image"
        if inputs.opened.endswith(".squashfs"):
            form = "a bare squashfs: the image's"
        why = f"{engine.kind} opens {form}, laid out once at its first launch, and kept"
        lines.append(Line("engine", inputs.opened, why))
    lines += [Line("engine", option, why) for option, why in engine.reasons]
    chosen = frameworks(
        inputs.request.rendezvous, inputs.request.command, python=bool(inputs.facts.python)
    )
    lines += [Line("rank", ", ".join(f.variables), f"set where unset: {f.why}") for f in chosen]
    for bind in inputs.request.binds:
        lines.append(Line("bind", f"{bind.source} -> {bind.target}", "the user's own"))
    launcher = inputs.launcher
    what = f"{launcher.path}  ({launcher.title})"
    lines.append(Line("launch", what, _why_launcher(launcher, draft.family)))
    return draft.plus(Changes(lines=(*lines, *inputs.notes)))


def _hidden(draft: Draft) -> tuple[str, ...]:
    request = draft.inputs.request
    return shell_folders.hidden(request, draft.inputs.engine, (*draft.binds, *request.binds))


def _planned(draft: Draft) -> Plan:
    inputs = draft.inputs
    return Plan(
        mode=inputs.request.mpi,
        image=inputs.image,
        facts=inputs.facts,
        site=inputs.site,
        engine=inputs.engine,
        launcher=inputs.launcher,
        host=inputs.swapped_in,
        request=inputs.request,
        planned_file=draft.planned_file,
        planned_title=draft.planned_title,
        family=draft.family,
        names=names_of(inputs.facts, draft.consumers, draft.family, draft.own),
        consumers=draft.consumers,
        staging=draft.staging,
        binds=(*draft.binds, *inputs.request.binds),
        env=draft.env,
        glibc=draft.glibc,
        bound=draft.bound,
        wrapper=draft.wrapper,
        witness=inputs.witness,
        unset=inputs.request.shell_python,
        withheld=(*withheld(inputs), *_hidden(draft)),
        devices=tuple(dict.fromkeys((*inputs.paths.devices, *own_devices(draft)))),
        opened=inputs.opened or inputs.image,
        lines=draft.lines,
        nccl=draft.nccl,
        nccl_staging=draft.nccl_staging,
        nccl_ask=inputs.nccl,
        nccl_decision=draft.nccl_decision,
        carried=inputs.carried,
        carried_staging=draft.carried_staging,
        apart=draft.apart,
    )


def _replaces(own: MpiLibrary | None, host: HostMpi, family: AbiFamily) -> Line:
    new = f"{host.library.title} of the host"
    what = f"{own.title} of the image -> {new}" if own else f"(no MPI in the image) -> {new}"
    why = f"both are of the {family} family: one binary interface, SONAME {host.library.soname}"
    if host.library.family is not family:
        why = (
            f"mpi4py has a module for each family, and takes that of the {host.library.family} family "
            f"when it finds {host.library.soname}; nothing else of the image can"
        )
    fact = f"{own.path if own else '-'} -> {host.library.path}; chosen: {host.found_by}"
    return Line("replace", what, why, fact)


def _images_own(name: str, value: str) -> tuple[Line, ...]:
    """Notes that the plan's value of a variable precedes the image's."""
    why = "the image sets it; the engine's takes its place"
    return (Line("behind", f"{name}={value}", why),) if value else ()


def _why_launcher(launcher: Launcher, family: AbiFamily) -> str:
    if launcher.kind == "srun" and launcher.pmi:
        return (
            f"Slurm starts the ranks; they find each other by {launcher.pmi}, which the mapped MPI "
            "speaks and `srun --mpi=list` offers"
        )
    if is_in_image(launcher):
        return (
            "the launcher that belongs to the image's own MPI: it starts all ranks in one container"
        )
    if family is AbiFamily.UNKNOWN and launcher.kind in ("mpiexec", "hydra", "openmpi"):
        return "of this host: how ranks of an unknown MPI find each other is not known for sure"
    if launcher.kind in ("mpiexec", "hydra", "openmpi"):
        return "the launcher of the MPI that will be mapped; another family's would leave every rank alone"
    return "the launcher of this site"
