"""The step of the plan that brings NCCL's network plugin: its staged folder, its binds and its variables.

The rules of the folder, each from a failure:

* ``lib`` holds the plugin under every name that NCCL, RCCL or a site's script asks for, its tuner, and nothing else:
  releases before 2.21 find it by LD_LIBRARY_PATH, so that this folder may be on it and nothing leaks from it;
* ``dep`` holds what it needs, found by the DT_RPATH of the copies only;
* what the staged MPI brings too is left out, since a process maps one library of a name: that of the MPI;
* names that the plugin opens without a version, ``libcuda.so``, are stubs that lead to those that containers have.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from fairlead.elf.facts import Elf, ImageFacts
from fairlead.elf.mpi_symbols import GLIBC_PIECES, RUNTIME_PIECES
from fairlead.elf.stub import MACHINES
from fairlead.nccl.checks.model import Case
from fairlead.nccl.decide import (
    FILE_FOLDER,
    Decision,
    decide,
    settings,
    staged_name,
    tuner_name,
)
from fairlead.nccl.interfaces import common_tuner, net_versions
from fairlead.nccl.model import MOUNT, Ask, HostNetwork, NcclPlan, NetPlugin
from fairlead.nccl.selection import TUNER, names_staged
from fairlead.swap.glibc import host_glibc
from fairlead.swap.model import CARRIED_MOUNT, Bind, Line, Plan, StagedFile, Staging, Stub
from fairlead.swap.model import MOUNT as MPI_MOUNT
from fairlead.swap.remedies.model import Changes, Draft

_STAGE_FORMAT = 1  # moves when the layout of the folder does
_UNVERSIONED = re.compile(r"(lib(?:cuda|cudart|amdhip64|hsa-runtime64|nvidia-ml))\.so")


def with_network(draft: Draft) -> Draft:
    """Adds the host's network plugin for the image's NCCL, where ranks are to have it."""
    inputs = draft.inputs
    decision = decide(inputs.facts, inputs.nccl)
    draft = replace(draft, nccl_decision=decision)
    if decision.library is None or (inputs.nccl.want == "auto" and not inputs.nccl.gpus):
        return draft
    if decision.host is None or decision.chosen is None:
        what = f"{decision.library.title} of the image keeps its own networks"
        return draft.plus(
            Changes(lines=(Line("network", what, decision.why, decision.library.path),))
        )
    staging, lines = _layout(draft, decision, decision.host)
    folder = str(inputs.cache / "stage" / staging.key)
    made = NcclPlan(
        library=decision.library,
        host=decision.host,
        interface=decision.chosen.interface,
        folder=folder,
        env=decision.env,
        networks=decision.networks,
        providers=inputs.nccl.rules.providers,
        file=f"{FILE_FOLDER}/{staged_name(decision.host)}",
        devices=inputs.nccl.host.devices if inputs.nccl.host else (),
        gdr=inputs.nccl.rules.gdr,
    )
    why = "the staged network plugin, seen in the container"
    lines = (
        _brought(decision, made),
        *_not_chosen(decision),
        *lines,
        Line("bind", f"{folder} -> {MOUNT} (read-only)", why),
        *_variables(decision, inputs.nccl, inputs.facts),
    )
    draft = replace(draft, nccl=made, nccl_staging=staging)
    draft = draft.plus(Changes((Bind(folder, MOUNT, read_only=True),), decision.env, lines))
    return _modules(_search_path(draft, decision))


def case(plan: Plan) -> Case | None:
    """What the checks of NCCL's network look at; None where the image has no NCCL, or ranks no GPUs."""
    decision, ask, facts = plan.nccl_decision, plan.nccl_ask, plan.facts
    if decision is None or decision.library is None or not (ask.gpus or ask.want != "auto"):
        return None
    brought = plan.glibc is not None and bool(plan.glibc.pieces) and plan.host is not None
    of_mpi = _of_mpi(plan)
    newest = of_mpi.get("libstdc++.so.6")
    return Case(
        image=plan.image,
        facts=facts,
        ask=ask,
        library=decision.library,
        decision=decision,
        plan=plan.nccl,
        env=settings(decision, facts, ask),
        site=plan.site.name,
        glibc=host_glibc(plan.host) if brought and plan.host else facts.glibc,
        libstdcxx=newest.offers.get("GLIBCXX", "") if newest else facts.libstdcxx,
        of_mpi=of_mpi,
        loader=bool(plan.wrapper),
    )


def _of_mpi(plan: Plan) -> dict[str, Elf]:
    """The libraries that are staged for MPI, by name."""
    host = plan.host
    of_host = (*host.parts, *host.optional) if host else ()
    below = (
        (elf for library in plan.carried for elf in library.parts) if plan.carried_staging else ()
    )
    parts = {elf.path: elf for elf in (*of_host, *below)}
    folders = (plan.staging, plan.carried_staging)
    staged = (f for s in folders if s for f in s.files if f.source in parts)
    return {PurePosixPath(file.target).name: parts[file.source] for file in staged}


def own_devices(draft: Draft) -> tuple[str, ...]:
    """Devices that the plugin opens."""
    return draft.nccl.devices if draft.nccl else ()


def _brought(decision: Decision, made: NcclPlan) -> Line:
    plugin = made.host.plugin
    known = f"net interface v{made.interface}" if made.interface else "no known net interface"
    what = f"{plugin.title} of the host -> {made.library.title} of the image, {known}"
    newest = ", ".join(f"v{version}" for version in net_versions(made.library)[-1:])
    why = decision.why + (f"; {newest} is the newest that it knows" if newest else "")
    fact = f"{plugin.path} -> {made.library.path}; found: {made.host.found_by}"
    return Line("network", what, why, fact)


def _not_chosen(decision: Decision) -> Iterator[Line]:
    for network, why in decision.chosen.left if decision.chosen else ():
        yield Line("left out", network.plugin.title, why, network.plugin.path)


def _variables(decision: Decision, ask: Ask, facts: ImageFacts) -> Iterator[Line]:
    """A line for each variable: what ranks get, what stays, what of the image is undone."""
    for variable in decision.variables:
        what = f"{variable.name}={variable.value}"
        why = variable.why
        if variable.instead and variable.instead != variable.value:
            why += f", in place of {variable.instead}"
        yield Line("env", what, why)
        own = ask.image.get(variable.name, facts.nccl_conf.get(variable.name, ""))
        if own and own != variable.value:
            where = "the image" if variable.name in ask.image else "/etc of the image"
            yield Line(
                "undone", f"{variable.name}={own}", f"{where} sets it; the plan's is in force"
            )
    for name, why in decision.left_out:
        yield Line("left out", name, why)


def _layout(
    draft: Draft, decision: Decision, host: HostNetwork
) -> tuple[Staging, tuple[Line, ...]]:
    """The plugin's staged folder, and a line that explains each thing in it."""
    assert decision.library is not None
    plugin, inputs = host.plugin, draft.inputs
    name = staged_name(host)
    files = [StagedFile(plugin.path, f"lib/{name}")]
    lines = [Line("stage", name, "the network plugin itself", plugin.path)]
    if tuner := _own_tuner(decision, host):
        files.append(StagedFile(tuner.path, f"lib/{tuner_name(host)}"))
        lines.append(Line("stage", tuner_name(host), _why_tuner(decision, tuner), tuner.path))
    for elf, place, why in _closure(draft, host):
        files += [StagedFile(elf.path, place)] if place else []
        lines.append(Line("stage" if place else "left out", place or elf.name, why, elf.path))
    for plugins in host.modules:
        folder = PurePosixPath(plugins.folder).name
        files += [
            StagedFile(path, f"dep/{folder}/{PurePosixPath(path).name}") for path in plugins.files
        ]
        what = f"{len(plugins.files)} modules of {plugins.folder}"
        lines.append(Line("stage", what, f"opened at run time, found by {plugins.variable}"))
    if inputs.isolate:
        rpath = ":".join(_searched(draft, host))
        files = [replace(file, rpath=rpath) for file in files]
        why = "each copy looks there by its own DT_RPATH; the image's programs never do"
        lines.append(Line("isolate", f"{MOUNT}/dep", why))
    asked = [f"lib/{alias}" for alias in names_staged(decision.library)]
    if plugin.soname and plugin.soname != name:
        asked.append(f"lib/{plugin.soname}")
    aliases = [(link, name) for link in dict.fromkeys(asked) if link != f"lib/{name}"]
    names = ", ".join(PurePosixPath(link).name for link, _ in aliases)
    lines.append(Line("alias", f"{names} -> {name}", "what NCCL, RCCL or a script may ask for"))
    aliases += _opened_names(host)
    stubs = tuple(_stubs(decision, host, inputs.facts))
    why = "the plugin opens the first name, which neither engine nor image need have"
    lines += [
        Line("alias", f"{PurePosixPath(s.target).name} -> {s.needed}", why, plugin.path)
        for s in stubs
    ]
    staged = tuple(sorted({file.target: file for file in files}.values(), key=lambda f: f.target))
    key = _key(host, staged, aliases, stubs)
    return Staging(key, staged, tuple(aliases), (), stubs), tuple(lines)


def _own_tuner(decision: Decision, host: HostNetwork) -> NetPlugin | None:
    """The tuner that is a file of its own and serves the image's NCCL."""
    own = host.tuner is not None and host.tuner.path != host.plugin.path
    return host.tuner if own and TUNER in decision.env else None


def _why_tuner(decision: Decision, tuner: NetPlugin) -> str:
    assert decision.library is not None
    version = common_tuner(decision.library, tuner)
    by = f", by version v{version} of the tuner interface" if version else ""
    return f"the network's tuner{by}"


def _closure(draft: Draft, host: HostNetwork) -> Iterator[tuple[Elf, str, str]]:
    """What the plugin needs: the file, its place (empty: left out), and why."""
    of_mpi = {file.source for _, file in _beside(draft)}
    names = {PurePosixPath(file.target).name for _, file in _beside(draft)}
    for elf in host.closure:
        if GLIBC_PIECES.match(elf.name):
            continue
        if elf.name in RUNTIME_PIECES:
            yield elf, "", "the process has the image's, or the MPI's"
        elif elf.path in of_mpi:
            yield elf, "", "what is staged for MPI brings it: a process maps it once"
        elif elf.name in names:
            yield elf, "", "what is staged for MPI has another of this name, and a process maps one"
        else:
            yield elf, f"dep/{elf.name}", "needed by the network plugin"


def _beside(draft: Draft) -> Iterator[tuple[str, StagedFile]]:
    """What is staged for MPI, with the place of its folder: the host's MPI, or libraries below the image's own."""
    for mount, staging in ((MPI_MOUNT, draft.staging), (CARRIED_MOUNT, draft.carried_staging)):
        for file in staging.files if staging else ():
            yield mount, file


def _searched(draft: Draft, host: HostNetwork) -> tuple[str, ...]:
    """The folders that the copies search, as paths in the container: those of the MPI that hold something shared too."""
    names = {elf.name for elf in host.closure}
    shared = {
        f"{mount}/{PurePosixPath(file.target).parent}"
        for mount, file in _beside(draft)
        if PurePosixPath(file.target).name in names
    }
    return (
        f"{MOUNT}/dep",
        *sorted(shared),
        *_of_image(draft.inputs.facts, host),
    )


def _of_image(facts: ImageFacts, host: HostNetwork) -> tuple[str, ...]:
    """The image's folders with the run time of its GPUs, which need not be on a search path: torch maps it by an own path."""
    wanted = (*host.plugin.elf.needed, *(f"{name}." for name in host.plugin.opens))
    elfs = (
        path
        for soname, path in facts.gpu_libraries.items()
        if soname in host.plugin.opens or soname.startswith(wanted)
    )
    return tuple(dict.fromkeys(str(PurePosixPath(path).parent) for path in elfs))


def _opened_names(host: HostNetwork) -> list[tuple[str, str]]:
    """Links for names that the plugin opens and the host has with a version: ``libgdrapi.so``."""
    there = {elf.name for elf in host.closure}
    names = []
    for name in host.plugin.opens:
        real = next((other for other in sorted(there) if other.startswith(f"{name}.")), "")
        if real and name not in there and not _UNVERSIONED.fullmatch(name):
            names.append((f"dep/{name}", real))
    return names


def _stubs(decision: Decision, host: HostNetwork, facts: ImageFacts) -> Iterator[Stub]:
    """Stubs for GPU libraries that the plugin opens by names without a version."""
    assert decision.library is not None
    runtime = decision.library.runtime
    machine = host.plugin.elf.machine
    major = runtime.removeprefix("cuda").removeprefix("rocm").partition(".")[0]
    versions = {"libcuda": "1", "libnvidia-ml": "1", "libhsa-runtime64": "1"}
    versions |= {"libcudart": major, "libamdhip64": major} if major else {}
    for name in host.plugin.opens if machine in MACHINES else ():
        match = _UNVERSIONED.fullmatch(name)
        if match and (number := versions.get(match[1])):
            if match[1] == "libcudart" and major == "11":
                number = "11.0"  # its SONAME in all of CUDA 11
            needed = f"{name}.{number}"
            there = PurePosixPath(facts.gpu_libraries.get(needed, ""))
            yield Stub(f"dep/{name}", needed, machine, str(there.parent) if there.name else "")


def _search_path(draft: Draft, decision: Decision) -> Draft:
    """Puts the plugin's folder on LD_LIBRARY_PATH where the release needs it, and that of its libraries without patchelf."""
    folders = [FILE_FOLDER] if decision.by_name else []
    if not draft.inputs.isolate:
        folders.append(f"{MOUNT}/dep")
    if not folders or draft.wrapper:
        return draft
    request = draft.inputs.request
    before = (draft.env.get("LD_LIBRARY_PATH", "") or request.image_library_path).split(":")
    of_mpi = [place for place in before if place.startswith(MPI_MOUNT)]
    others = [place for place in before if place and place not in of_mpi]
    path = ":".join((*of_mpi, *folders, *others))
    why = "this NCCL finds its plugin by name; the folder holds nothing else"
    if not draft.inputs.isolate:
        why = (
            "without patchelf, the plugin finds its libraries by this; the image's programs do too"
        )
    line = Line("env", f"LD_LIBRARY_PATH={path}", why)
    return draft.plus(Changes(env={"LD_LIBRARY_PATH": path}, lines=(line,)))


def _modules(draft: Draft) -> Draft:
    """Points the plugin's libfabric to its modules, where the MPI's does not have some already."""
    assert draft.nccl is not None
    env = {}
    for plugins in draft.nccl.host.modules:
        if plugins.variable not in draft.env:
            env[plugins.variable] = f"{MOUNT}/dep/{PurePosixPath(plugins.folder).name}"
    why = "the host's modules, not the image's: mixed ones crash"
    lines = tuple(Line("env", f"{name}={value}", why) for name, value in env.items())
    return draft.plus(Changes(env=env, lines=lines))


def _key(
    host: HostNetwork,
    files: tuple[StagedFile, ...],
    aliases: list[tuple[str, str]],
    stubs: tuple[Stub, ...],
) -> str:
    """Changes when a library changes (build id, versions, path) or the layout does."""
    ids = {elf.path: elf.build_id or str(elf.needs) for elf in host.parts}
    text = [f"{_STAGE_FORMAT} {host.plugin.title}"]
    text += [f"{f.source} {f.target} {f.rpath} {ids.get(f.source, '')}" for f in files]
    text += [f"{link} {target}" for link, target in aliases]
    text += [f"{s.target} {s.needed} {s.machine} {s.rpath}".rstrip() for s in stubs]
    digest = hashlib.sha256("\n".join(text).encode()).hexdigest()[:12]
    return f"nccl-{re.sub(r'[^a-z0-9.]+', '-', host.plugin.title.lower())}-{digest}"
