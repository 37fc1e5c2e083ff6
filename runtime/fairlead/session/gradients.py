"""What carries gradients in a launch: one backend of :mod:`fairlead.comm`, chosen from facts and declarations.

:func:`choose` is pure. A requested name comes first, then the site's preference, then the available backend of the
highest priority: NCCL where ranks have GPUs and torch has NCCL, the native core, mpi4py. A backend is never silently
exchanged for another: a requested one that is not available is refused, a preferred one gives a warning.

:func:`facts_of` gathers the facts, :func:`onto` adds the choice to a plan: ranks learn of it by
``FAIRLEAD_COMM_BACKEND``. Without a request they take the core that the launch shows them, or mpi4py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fairlead import native
from fairlead.base.comm_backend import REGISTRY, Availability, CommBackend, CommFacts, unknown
from fairlead.base.comm_names import PLUGIN, UNORDERED, VARIABLE, is_ordered
from fairlead.base.errors import ExitCode, Finding, error, fail, info, warning
from fairlead.base.paths import cache_dir
from fairlead.engines.model import Engine
from fairlead.image.open import Image
from fairlead.site.model import Site
from fairlead.site.resolved_paths import Here
from fairlead.swap.model import Bind, Line, Plan, Request

# Words for an engine that show a node's GPUs to a container.
_SHOWS = re.compile(r"--(nv|nvccli|rocm|gpus?|module=gpu|device=?(nvidia|/dev/kfd)?)\b")


@dataclass(frozen=True)
class Option:
    """A backend that was not chosen.

    Attributes:
        possible: None where only the ranks will know.
        why: why it is not possible, or not chosen.
    """

    backend: str
    possible: bool | None
    why: str


@dataclass(frozen=True)
class CommChoice:
    """What carries the gradients, and why.

    Attributes:
        declared: the backend.
        forced: it was requested by name.
        variables: what the ranks need besides its name.
        folders: folders of the machine that the container must see.
        others: all the other backends.
        findings: an error where the requested one is not available.
    """

    declared: CommBackend
    why: str
    forced: bool
    variables: Mapping[str, str]
    folders: tuple[str, ...]
    others: tuple[Option, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def backend(self) -> str:
        """Its name."""
        return self.declared.name

    @property
    def on_gpus(self) -> bool:
        """Whether it needs the container to see the GPUs."""
        return bool(self.declared.host_arrays)

    @property
    def env(self) -> dict[str, str]:
        """Variables for the ranks; none where they choose it by themselves."""
        if not self.forced and self.declared.automatic:
            return {}
        return {VARIABLE: self.backend, **self.variables}


def choose(facts: CommFacts) -> CommChoice:
    """The backend for these facts, of those that are installed; equal facts give equal choices."""
    declarations = {declared.name: declared for declared in REGISTRY.every()}
    available = {name: _available(declared, facts) for name, declared in declarations.items()}
    findings: list[Finding] = []
    forced = facts.asked not in ("", "auto")
    if forced:
        chosen, why = declarations[facts.asked], f"{facts.asked_by} asks for it"
        possible, reason = available[facts.asked]
        if possible is False:
            findings.append(error("comm-backend-absent", chosen=chosen, facts=facts, why=reason))
        elif possible is None:
            by = facts.asked_by
            findings.append(info("comm-choice-planned", chosen=chosen, by=by, why=reason))
    else:
        chosen, why = _unasked(declarations, available, facts)
        if facts.wish and facts.wish != chosen.name:
            wish, not_it = declarations[facts.wish], available[facts.wish].why
            findings.append(
                warning(
                    "comm-choice-not-preferred",
                    chosen=chosen,
                    preferred=wish,
                    facts=facts,
                    why=not_it,
                )
            )
        elif facts.wish and available[chosen.name].possible is None:
            by, unknown_yet = f"site {facts.site}", available[chosen.name].why
            findings.append(info("comm-choice-planned", chosen=chosen, by=by, why=unknown_yet))
    others = tuple(
        Option(name, possible, reason or _not_chosen(declarations[name], chosen))
        for name, (possible, reason) in available.items()
        if name != chosen.name
    )
    return CommChoice(
        chosen, why, forced, chosen.variables(facts), chosen.folders(facts), others, tuple(findings)
    )


def _unasked(
    declarations: Mapping[str, CommBackend], available: Mapping[str, Availability], facts: CommFacts
) -> tuple[CommBackend, str]:
    if facts.wish and available[facts.wish].possible is not False:
        return declarations[facts.wish], f"the profile {facts.site} says so ({facts.wish_by})"
    ranked = sorted(declarations.values(), key=lambda declared: -declared.priority)
    ranked = [declared for declared in ranked if declared.priority]
    chosen = next((d for d in ranked if available[d.name].possible), ranked[-1])
    return chosen, chosen.why_chosen(facts) or chosen.summary


def _available(declared: CommBackend, facts: CommFacts) -> Availability:
    if facts.ordered and not declared.ordered:
        return Availability(False, UNORDERED)
    return declared.available(facts)


def _not_chosen(declared: CommBackend, chosen: CommBackend) -> str:
    if chosen.host_arrays == declared.name:
        return "still carries the host's arrays"
    return declared.not_chosen


def facts_of(
    image: Image,
    site: Site,
    here: Here,
    engine: Engine,
    request: Request,
    environ: Mapping[str, str] = os.environ,
    *,
    elsewhere: bool = False,
) -> CommFacts:
    """The facts for a request on this machine.

    Args:
        engine: with the site's options.
        elsewhere: the launch is on another machine, of which the compilers of this one say nothing.
    """
    wheels = image.packages.get("wheel") or {}
    plugin = environ.get(PLUGIN, "") or next(iter(here.plugin), "")
    words = (*engine.options, *request.engine_args, *site.gpu.options.get(engine.kind, ()))
    shown = shows_gpus(words)
    core = elsewhere or native.available(native.CORE, cache_dir(environ), environ)
    return CommFacts(
        asked=request.comm,
        asked_by=request.comm_by,
        image=image.name,
        modules=tuple(elf.path for elf in image.facts.consumers),
        wheels={re.sub(r"[-_.]+", "-", n).lower(): v for n, v in wheels.items()} or None,
        site=site.name,
        wish=site.comm.backend,
        wish_by=site.known_by("comm.backend"),
        plugin=plugin,
        plugin_named=bool(site.comm.plugin or plugin),
        gpus=site.gpu.vendor,
        gpus_given=(bool(request.shape.gpus) and shown) or request.gpu,
        ordered=is_ordered(environ),
        no_core="" if core else "this machine has no C++ compiler",
    )


def shows_gpus(words: Iterable[str]) -> bool:
    """Whether words for an engine show a node's GPUs to a container."""
    return any(_SHOWS.match(word) for word in words)


def onto(plan: Plan, choice: CommChoice) -> Plan:
    """``plan`` with the variables and folders that the ranks need for the choice."""
    if not choice.env:
        return plan
    why = f"gradients go by {choice.backend}: {choice.why}"
    lines = [Line("env", f"{name}={value}", why) for name, value in choice.env.items()]
    binds = plan.binds
    for folder in choice.folders:
        if folder not in {b.target for b in (*binds, *plan.request.binds)}:
            binds = (*binds, Bind(folder, folder, True))
            lines.append(Line("bind", folder, f"{choice.declared.summary}, which the ranks import"))
    return replace(plan, env={**plan.env, **choice.env}, binds=binds, lines=(*plan.lines, *lines))


def asked_for(
    flag: str | None, variables: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[str, str]:
    """The requested backend, and what requests it; ("", "") if nothing does.

    Raises:
        FairleadError: exit code 2; there is no such backend, or two are requested.
    """
    if flag and variables.get(VARIABLE, flag) != flag:
        value = variables[VARIABLE]
        raise fail("comm-backend-contradicts-env", flag=flag, variable=VARIABLE, value=value)
    for by, name in (
        ("--comm", flag),
        (f"--env {VARIABLE}", variables.get(VARIABLE)),
        (f"${VARIABLE}", environ.get(VARIABLE)),
    ):
        if name:
            if name != "auto" and REGISTRY.find(name) is None:
                where = f"{by} {name}" if by == "--comm" else f"{by}={name}"
                raise unknown(name, where, "name one of them", ExitCode.USAGE)
            return name, by
    return "", ""
