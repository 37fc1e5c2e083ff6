"""NCCL's network plugin in a separate folder, as an export names it: ``fairlead site export --nccl``.

What goes into the folder is decided where a launch decides it, :mod:`fairlead.swap.network`. An export does not know how
many nodes a job will have: where a site wants no NCCL_NET on a single node, it is a variable apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from fairlead.base.errors import ExitCode, FairleadError, Severity, fail
from fairlead.elf.facts import AbiFamily, ImageFacts, NcclLibrary
from fairlead.engines.model import Engine
from fairlead.export.model import Facts
from fairlead.launchers.model import Launcher
from fairlead.nccl.checks.model import Case
from fairlead.nccl.checks.registry import CHECKS
from fairlead.nccl.decide import settings
from fairlead.nccl.host import rules_of
from fairlead.nccl.model import MOUNT, Ask, HostNetwork
from fairlead.nccl.selection import NET
from fairlead.site.model import Site
from fairlead.swap.model import Inputs, Request, Staging
from fairlead.swap.network import with_network
from fairlead.swap.remedies.model import Draft

_CACHE = Path("/fairlead-export")  # stands for the cache in the plan; no export shows it
_OLDEST = "2.12"  # the first that NCCL_NET_PLUGIN selects a plugin for, and only by its name


@dataclass(frozen=True)
class Carried:
    """The folder with NCCL's network plugin, and what ranks need for it.

    Attributes:
        title: what it is, for people.
        folder: of the machine.
        place: where a container sees it.
        env: what every container needs.
        nodes: what only runs on several nodes may have: NCCL_NET, without which a miss ends on TCP.
        devices: of the machine, that the plugin opens.
        plugin: its file in the staged folder.
        job: options of the job without which the variables do not take effect.
    """

    title: str
    folder: str
    place: str
    staging: Staging
    env: Mapping[str, str]
    nodes: Mapping[str, str]
    devices: tuple[str, ...]
    plugin: str
    job: tuple[str, ...] = ()

    @property
    def comment(self) -> str:
        """What a job must ask for, as a line of a comment; empty if nothing."""
        return f"# The job itself needs {' '.join(self.job)}.\n" if self.job else ""


def carried(facts: Facts) -> Carried:
    """The folder for the site's plugin.

    Raises:
        FairleadError: exit code 121; the machine has no plugin, or one that lacks a library or does not serve the image.
    """
    host = facts.nccl
    if facts.against:
        raise fail("export-nccl-site", facts=facts, against="; ".join(facts.against))
    if host is None:
        raise fail("export-nccl-capture", node=facts.node)
    inside = facts.image.facts if facts.image else _any(facts.site, host.networks)
    own = facts.image.env if facts.image else {}
    ask = Ask(
        want="host",
        gpus=True,
        host=host,
        rules=rules_of(facts.site),
        image=own,
        fabric=facts.site.fabric.kind,
        job=facts.site.nccl.directives,  # which the files of the export name
    )
    request = Request(ranks=2, mpi="container", image_library_path=own.get("LD_LIBRARY_PATH", ""))
    engine = Engine("any", "any", userns_per_rank=False, options=(), reasons=())
    launcher = Launcher("srun", AbiFamily.UNKNOWN, "")
    name = facts.image.path if facts.image else "any image"
    inputs = Inputs(
        name, inside, None, launcher, facts.site, engine, request, _CACHE,
        isolate=facts.isolate, nccl=ask,
    )  # fmt: skip
    draft = with_network(Draft(inputs, None, AbiFamily.UNKNOWN, AbiFamily.UNKNOWN, ()))
    decision, staging = draft.nccl_decision, draft.nccl_staging
    if draft.nccl is None or staging is None or decision is None:
        raise _nothing(facts, decision.why if decision else "")
    _complete(draft.nccl.host)
    if facts.image:
        _check(Case(
            name, inside, ask, draft.nccl.library, decision, draft.nccl,
            settings(decision, inside, ask), facts.site.name, inside.glibc, inside.libstdcxx,
        ))  # fmt: skip
    env = dict(draft.env)
    nodes = {} if facts.site.nccl.single_node or NET not in env else {NET: env.pop(NET)}
    plugin = PurePosixPath(draft.nccl.file).relative_to(MOUNT)
    folder = f"{facts.stage_root.rstrip('/')}/{staging.key}"
    devices = tuple(dict.fromkeys((*draft.nccl.devices, *facts.here.devices)))
    title = f"{draft.nccl.host.plugin.title} of {facts.node}"
    job = facts.site.nccl.directives
    return Carried(title, folder, MOUNT, staging, env, nodes, devices, str(plugin), job)


def _nothing(facts: Facts, why: str) -> Exception:
    patterns = ", ".join(facts.site.nccl.folders) or "no folder"
    modules = " ".join(facts.site.nccl.modules)
    remedy = f"module load {modules}, and export again" if modules else "name its folder in [nccl]"
    return fail("export-nccl-none", node=facts.node, why=why, patterns=patterns, remedy=remedy)


def _complete(network: HostNetwork) -> None:
    if network.missing:
        lacks = ", ".join(f"{name} (needed by {by})" for name, by in network.missing)
        raise fail("export-nccl-missing", path=network.plugin.path, lacks=lacks)


def _check(case: Case) -> None:
    """Raises what a launch with the image would be refused for."""
    findings = [finding for check in CHECKS for finding in check.look(case)]
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        raise FairleadError(errors, ExitCode.PREFLIGHT_REFUSED)


def _any(site: Site, networks: tuple[HostNetwork, ...]) -> ImageFacts:
    """An image with an NCCL of unknown version, for an export that serves every image.

    A second, old one has the plugin found by its name, as releases before 2.21 do it.
    """
    machine = networks[0].plugin.elf if networks else None
    kind = "rccl" if site.gpu.vendor == "amd" else "nccl"
    libraries: tuple[NcclLibrary, ...] = ()
    if machine is not None:
        elf = replace(machine, path=f"/any/lib{kind}.so", soname=f"lib{kind}.so")
        newest = NcclLibrary("/any/1", elf.soname, kind, "", "", elf)
        libraries = (newest, replace(newest, path="/any/2", version=_OLDEST))
    return ImageFacts(
        arch=machine.machine if machine else "",
        glibc="",
        libstdcxx="",
        libgfortran="",
        os="",
        python="",
        mpis=(),
        consumers=(),
        nccl=libraries,
    )
