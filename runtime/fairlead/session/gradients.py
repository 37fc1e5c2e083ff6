"""What carries gradients in a launch: one backend of :mod:`fairlead.comm`, chosen from facts.

:func:`choose` is pure. Asked for by name comes first, then the site's own wish, then NCCL where ranks have
GPUs and torch has NCCL, then the native core, then mpi4py. What cannot be had is never silently exchanged:
a name that was asked for is refused, a site's wish is warned about.

:func:`facts_of` gathers the facts, :func:`onto` lays the choice into a plan: ranks learn of it by
``FAIRLEAD_COMM_BACKEND``. Where nobody has a wish they take the core that the launch shows them, or mpi4py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairlead import native
from fairlead.base.comm_names import BACKENDS, PLUGIN, UNORDERED, VARIABLE, is_ordered, unknown
from fairlead.base.errors import ExitCode, Finding, Severity, fail
from fairlead.base.paths import cache_dir
from fairlead.engines.model import Engine
from fairlead.image.open import Image
from fairlead.site.evidence import known_by
from fairlead.site.model import Site
from fairlead.site.resolved_paths import Here
from fairlead.swap.layout import Line
from fairlead.swap.plan import Bind, Plan, Request

NAMES = tuple(name for name in BACKENDS if name != "auto")
_WHAT = {
    "native": "the C++ core: shared memory within a node, the host's MPI between nodes",
    "mpi4py": "the reference, one Allreduce of one buffer",
    "horovod": "Horovod of the image",
    "dl_comm": "the site's own Cray plugin",
    "nccl": "NCCL through torch for tensors on GPUs, the core for arrays of the host",
}
# Words for an engine that show a node's GPUs to a container.
_SHOWS = re.compile(r"--(nv|nvccli|rocm|gpus?|module=gpu|device=?(nvidia|/dev/kfd)?)\b")


@dataclass(frozen=True)
class CommFacts:
    """What the choice depends on.

    Attributes:
        asked, asked_by: the backend that is asked for, and by what; "" where nobody asks.
        image: how the user calls it.
        modules: files of it that use MPI: those of mpi4py and of Horovod tell that they are there, whoever
            built the image.
        wheels: its Python packages, by normalised name; None where nobody knows them.
        site: the profile's name.
        wish, wish_by: the backend that the profile prefers, and who says so; "".
        plugin: folder of the site's dl_comm on the machine; "" where it is not there.
        plugin_named: the profile or a variable names such a folder.
        unseen: nobody has looked for it on that machine.
        gpus: whose GPUs the nodes have, as the profile has it: ``nvidia``, ``amd``, ``intel``, ``none``.
        gpus_given: ranks get GPUs in this launch.
        ordered: sums are asked for in an order that never changes, which only core and reference give.
        no_core: why the native core cannot be had; "" where it can.
    """

    asked: str = ""
    asked_by: str = ""
    image: str = ""
    modules: tuple[str, ...] = ()
    wheels: Mapping[str, str] | None = None
    site: str = ""
    wish: str = ""
    wish_by: str = ""
    plugin: str = ""
    plugin_named: bool = False
    unseen: bool = False
    gpus: str = "none"
    gpus_given: bool = False
    ordered: bool = False
    no_core: str = ""


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
        forced: it was asked for by name.
        plugin: folder of dl_comm that the container must see; "".
        others: all the other backends.
        findings: an error where the one that is asked for cannot be had.
    """

    backend: str
    why: str
    forced: bool
    plugin: str
    others: tuple[Option, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def env(self) -> dict[str, str]:
        """Variables for the ranks; none where they choose so by themselves."""
        if not self.forced and self.backend in ("native", "mpi4py"):
            return {}
        told = {VARIABLE: self.backend}
        return {**told, PLUGIN: self.plugin} if self.backend == "dl_comm" else told


def choose(facts: CommFacts) -> CommChoice:
    """The backend for these facts; equal facts give equal choices."""
    can = {name: _possible(name, facts) for name in NAMES}
    findings: list[Finding] = []
    if facts.asked and facts.asked != "auto":
        backend, why, forced = facts.asked, f"{facts.asked_by} asks for it", True
        possible, reason = can[backend]
        if possible is False:
            findings.append(_refusal(backend, reason, facts))
        elif possible is None:
            findings.append(_unproven(backend, reason, facts.asked_by))
    else:
        forced = False
        backend, why = _unasked(can, facts)
        if facts.wish and facts.wish != backend:
            findings.append(_no_wish(backend, can[facts.wish][1], facts))
        elif facts.wish and can[backend][0] is None:
            findings.append(_unproven(backend, can[backend][1], f"site {facts.site}"))
    others = tuple(
        Option(name, possible, reason or _passed_over(name, backend))
        for name, (possible, reason) in can.items()
        if name != backend
    )
    plugin = facts.plugin if backend == "dl_comm" else ""
    return CommChoice(backend, why, forced, plugin, others, tuple(findings))


def _unasked(can: Mapping[str, tuple[bool | None, str]], facts: CommFacts) -> tuple[str, str]:
    if facts.wish and can[facts.wish][0] is not False:
        return facts.wish, f"the profile {facts.site} says so ({facts.wish_by})"
    if can["nccl"][0] and facts.gpus_given:
        version = (facts.wheels or {}).get("torch", "")
        return "nccl", f"ranks have GPUs, and torch {version} has NCCL: nothing is faster in a node"
    if can["native"][0]:
        return "native", _WHAT["native"]
    return "mpi4py", f"{_WHAT['mpi4py']}; the core cannot be had: {facts.no_core}"


def _possible(name: str, facts: CommFacts) -> tuple[bool | None, str]:
    """Whether a backend can be had, None for perhaps; and why not, or what is not known."""
    if name == "native":
        return not facts.no_core, facts.no_core
    if facts.ordered and name != "mpi4py":
        return False, UNORDERED
    if name == "dl_comm":
        if facts.plugin:
            return True, ""
        if facts.plugin_named and facts.unseen:
            return None, "nobody has looked on that machine whether the site's module is there"
        if facts.plugin_named:
            return False, "the folder that is named for it is not on this machine"
        return False, f"the profile {facts.site} names no folder of it ([comm] plugin)"
    if name == "mpi4py":
        there = _has(facts, "/mpi4py/")
        return there, "" if there else "the image has no mpi4py"
    if name == "horovod":
        if not _has(facts, "/horovod/"):
            return False, "the image has no Horovod that was built with MPI"
        if not _has(facts, "/horovod/tensorflow/"):
            return False, "the image's was not built for TensorFlow, whose operations are used"
        return True, ""
    return _nccl(facts)


def _has(facts: CommFacts, folder: str) -> bool:
    return any(folder in path for path in facts.modules)


def _nccl(facts: CommFacts) -> tuple[bool | None, str]:
    if facts.wheels is None:
        return None, "nobody knows the packages of this image; the ranks will tell"
    wheels = facts.wheels
    version = wheels.get("torch")
    if version is None:
        return False, "the image has no torch, by which it is used"
    built = bool(re.search(r"\+(cu|rocm)", version)) or any("nccl" in name for name in wheels)
    if not built:
        return False, f"torch {version} of the image was built without it"
    if facts.gpus == "intel":
        return False, f"the GPUs of {facts.site} are Intel's, which it does not know"
    if not facts.gpus_given:
        return None, (
            "no GPU is known to reach the ranks: `--gpus-per-rank 1`, and what shows it to the container,"
            " as `--engine-arg=--nv`"
        )
    if facts.gpus == "none":
        return None, f"the profile {facts.site} knows no GPUs"
    return True, ""


def _passed_over(name: str, backend: str) -> str:
    if backend == "nccl" and name == "native":
        return "carries the host's arrays all the same"
    return {
        "native": "faster within a node, and not asked for",
        "mpi4py": "slower than the core: the reference",
        "horovod": "slower than the core; only when asked for",
        "dl_comm": "only when asked for, by the site or by you",
        "nccl": "not asked for",
    }[name]


_BRINGS = {
    "native": "install a C++ compiler (g++), or name a working one in CXX; or `--comm mpi4py`",
    "mpi4py": "add mpi4py to [packages] pip of the image's recipe",
    "horovod": "`fairlead build tensorflow-horovod`, and that as IMAGE; or leave it to fairlead: `--comm auto`",
    "dl_comm": f'[comm] plugin = ["FOLDER"] in the site\'s profile, or {PLUGIN}=FOLDER; or `--comm auto`',
    "nccl": "an image with torch for GPUs, as of the recipe pytorch-cuda; or `--comm auto`",
}


def _refusal(backend: str, why: str, facts: CommFacts) -> Finding:
    return Finding(
        Severity.ERROR,
        f"gradients cannot go by {backend}",
        f"{facts.asked_by}; image {facts.image}, site {facts.site}",
        why,
        _BRINGS[backend],
        "comm-backend-absent",
    )


def _unproven(backend: str, why: str, by: str) -> Finding:
    return Finding(Severity.INFO, f"gradients are to go by {backend}", by, why, check="comm-choice")


def _no_wish(backend: str, why: str, facts: CommFacts) -> Finding:
    return Finding(
        Severity.WARNING,
        f"gradients go by {backend}, not by {facts.wish} as site {facts.site} wishes",
        f"[comm] of the profile {facts.site}",
        why,
        f"{_BRINGS[facts.wish]}; or say what you want: --comm {backend}",
        "comm-choice",
    )


def facts_of(
    image: Image,
    site: Site,
    here: Here,
    engine: Engine,
    request: Request,
    environ: Mapping[str, str] = os.environ,
    *,
    elsewhere: bool = False,
    unseen: bool = False,
) -> CommFacts:
    """The facts for a request on this machine.

    Args:
        engine: with the site's words for it.
        elsewhere: the machine is another; compilers here say nothing of it.
        unseen: nobody has been on it; its profile is all that is known.
    """
    known = image.packages.get("wheel") or {}
    plugin = environ.get(PLUGIN, "") or next(iter(here.plugin), "")
    words = (*engine.options, *request.engine_args, *site.gpu.options.get(engine.kind, ()))
    shown = any(_SHOWS.match(word) for word in words)
    try:
        core = elsewhere or native.core_path(cache_dir(environ)).is_file()
    except OSError:  # an installation without the core's source; a launch says so
        core = False
    return CommFacts(
        asked=request.comm,
        asked_by=request.comm_by,
        image=image.name,
        modules=tuple(elf.path for elf in image.facts.consumers),
        wheels={re.sub(r"[-_.]+", "-", n).lower(): v for n, v in known.items()} or None,
        site=site.name,
        wish=site.comm.backend,
        wish_by=known_by(site, "comm.backend"),
        plugin=plugin,
        plugin_named=bool(site.comm.plugin or plugin),
        unseen=unseen,
        gpus=site.gpu.vendor,
        gpus_given=(bool(request.shape.gpus) and shown) or request.gpu,
        ordered=is_ordered(environ),
        no_core="" if core or native.cxx_compiler(environ) else "there is no C++ compiler here",
    )


def onto(plan: Plan, choice: CommChoice) -> Plan:
    """``plan`` with what the ranks must be told of the choice, and be shown."""
    if not choice.env:
        return plan
    why = f"gradients go by {choice.backend}: {choice.why}"
    lines = [Line("env", f"{name}={value}", why) for name, value in choice.env.items()]
    binds = plan.binds
    if choice.plugin and choice.plugin not in {b.target for b in (*binds, *plan.request.binds)}:
        binds = (*binds, Bind(choice.plugin, choice.plugin, True))
        lines.append(Line("bind", choice.plugin, "the site's dl_comm, which the ranks import"))
    return replace(plan, env={**plan.env, **choice.env}, binds=binds, lines=(*plan.lines, *lines))


def asked_for(
    flag: str | None, variables: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[str, str]:
    """The backend that is asked for, and by what; ("", "") where nobody asks.

    Raises:
        FairleadError: exit code 2; there is no such backend, or two are asked for at once.
    """
    if flag and variables.get(VARIABLE, flag) != flag:
        raise fail(
            "two backends are asked for",
            where=f"--comm {flag} and --env {VARIABLE}={variables[VARIABLE]}",
            why="the ranks would get the one, and the plan the other",
            remedy="leave out --env",
            check="comm-backend",
            code=ExitCode.USAGE,
        )
    for by, name in (
        ("--comm", flag),
        (f"--env {VARIABLE}", variables.get(VARIABLE)),
        (f"${VARIABLE}", environ.get(VARIABLE)),
    ):
        if name:
            if name not in BACKENDS:
                where = f"{by} {name}" if by == "--comm" else f"{by}={name}"
                raise unknown(name, where, "name one of them", ExitCode.USAGE)
            return name, by
    return "", ""
