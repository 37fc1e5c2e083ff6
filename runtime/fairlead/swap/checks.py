"""Preflight: will this plan work? Each check reads only facts, and its failure names a remedy.

Most valuable are the checks for failures that look like success: the wrong launcher, a missing
alias or a DT_RPATH ends with exit code 0 on the wrong MPI, or with every rank alone.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from fairlead.base.errors import Finding, Severity, error, info, warning
from fairlead.base.python_imports import package_of
from fairlead.base.text import some
from fairlead.elf.facts import LIB, AbiFamily, Elf, MpiLibrary
from fairlead.elf.mpi_symbols import (
    GLIBC_PIECES,
    called,
    contains_mpi,
    is_interface,
    is_request,
    own_functions,
)
from fairlead.elf.reader import version_key
from fairlead.engines.registry import ENGINES
from fairlead.launchers.pmi import connects, pmi_named
from fairlead.launchers.registry import connected_by, is_in_image, kind_of
from fairlead.mpi.cross_abi import crossing
from fairlead.mpi.host import HostMpi, needs
from fairlead.nccl.checks.plugin import not_in_image
from fairlead.nccl.checks.registry import CHECKS as NCCL_CHECKS
from fairlead.swap import wrappers
from fairlead.swap.carry import check as carried
from fairlead.swap.family import image_family, in_reach, own_library, speaking
from fairlead.swap.glibc import Glibc, GlibcWay, host_glibc
from fairlead.swap.layout import folders_behind
from fairlead.swap.link import Lack, Linked, link
from fairlead.swap.model import MOUNT, Plan
from fairlead.swap.network import case as nccl_case
from fairlead.swap.python_reach import surely_imported
from fairlead.swap.reach import (
    DEFAULT_PATH,
    Kind,
    by_family,
    in_text,
    in_text_closure,
    interpreted,
    lost_by_login,
    lost_interpreter,
    named_within,
    off_path,
    parted_by,
    perhaps_fit,
    programs_of,
    reach,
    searched_path,
    started,
)
from fairlead.swap.remedies.gpu_transport import gpu_transport

_SETTLED = (Kind.NONE, Kind.MISSING, Kind.STATIC)  # programs of which no file needs an MPI
_SYSTEM_FOLDERS = ("/usr/local/lib", *(f"{top}/{lib}" for top in ("", "/usr") for lib in LIB))
# Engines bring them from the host: --nv, --rocm.
_DRIVERS = re.compile(r"lib(cuda|nvidia|nvcuvid|nvoptix|GLX?|EGL|OpenCL|amdhip|hsa|rocm|drm)")
Check = Callable[[Plan], Iterator[Finding]]


def check(plan: Plan) -> tuple[Finding, ...]:
    """Every finding about a plan. Most checks that pass report that, with severity OK."""
    return tuple(finding for run in CHECKS for finding in run(plan))


def refused(findings: tuple[Finding, ...]) -> bool:
    """Whether any finding stops the launch."""
    return any(f.severity is Severity.ERROR for f in findings)


def _of_swap(look: Callable[[Plan, HostMpi], Iterator[Finding]]) -> Check:
    """A check of the host's MPI; it finds nothing where the image's own MPI runs."""
    return lambda plan: look(plan, plan.host) if plan.host else iter(())


def _ok(check_name: str, what: str, why: str = "") -> Finding:
    return Finding(Severity.OK, what, why=why, check=check_name)


def abi_family(plan: Plan) -> Iterator[Finding]:
    """Image and host must have the same binary interface."""
    if plan.host is None:
        yield _ok("abi-family", "the image's own MPI is used", plan.planned_title)
        if plan.unknown_mpi:
            yield _unknown_mpi(plan)
        return
    library, programs = plan.host.library, interpreted(plan.facts, plan.request)
    wanted = image_family(plan.facts, plan.request)
    if wanted is library.family:
        yield _ok("abi-family", f"image and host are of the {wanted} family", library.soname)
    elif plan.family is library.family:
        what = f"mpi4py crosses from the image's {wanted} family to the host's {plan.family} family"
        yield _ok("abi-family", what, plan.consumers[0].path)
    elif _is_foreign(plan, library.family):
        over = crossing(in_reach(plan.facts, plan.request), programs, library.family)
        why = f"; {over.why_not}" if over.modules else ""
        remedy = f"{over.instead}; or " if over.instead else ""
        names = ", ".join(plan.names)
        yield error(
            "abi-family", library=library, wanted=wanted, names=names, why=why, remedy=remedy
        )


def _unknown_mpi(plan: Plan) -> Finding:
    """What is not known of an MPI of no known family, and what is: how its ranks find each other."""
    own = own_library(plan.facts, plan.request)
    finds = {
        "pmi": "its file names PMI, which MPICH's launchers and Slurm speak",
        "pmix": "its file names PMIx, which Open MPI's launcher and Slurm speak",
    }
    if own is None:  # inside of a program
        return warning("mpi-unknown-inside", path=plan.planned_file, launcher=plan.launcher)
    how = finds.get(own.pmi, "how its ranks find each other is not known either")
    return warning("mpi-unknown-own", name=own.soname, plan=plan, how=how)


def _is_foreign(plan: Plan, family: AbiFamily) -> bool:
    """No program that may run is of a family. Of several ones `families` speaks, of programs without MPI `program`."""
    reached = reach(plan.facts, plan.request)
    settled = reached.programs and all(p.kind in _SETTLED for p in reached.programs)
    several = not reached.programs and family in by_family(plan.facts, reached)
    return not (settled or several)


def program(plan: Plan) -> Iterator[Finding]:
    """The named programs must be in the image; of those that use no MPI nothing will be proved."""
    for named in reach(plan.facts, plan.request).programs:
        if named.kind is Kind.MISSING:
            name = named.asked.rpartition("/")[2]
            known = {path.rpartition("/")[2]: path for path in sorted(plan.facts.programs)}
            close = difflib.get_close_matches(name, known, cutoff=0.7)
            begin = [n for n in known if len(name) > 1 and n.startswith(name)]
            near = [known[n] for n in dict.fromkeys((*begin, *close))]
            yield error(
                "program-missing",
                name=named.asked,
                image=plan.image,
                path=_path(plan) or "PATH of the image",
                near=f"; near: {some(near)}" if near else "",
            )
        elif lost := lost_interpreter(plan.facts, replace(plan.request, binds=plan.binds), named):
            given = {"name": lost, "program": named.path, "image": plan.image}
            finding = error("program-interpreter", **given)
            unsure = named.perhaps or plan.request.engine_args
            yield replace(finding, severity=Severity.WARNING) if unsure else finding
        elif named.kind is Kind.STATIC:
            yield warning("program-static", path=named.path)
        elif named.kind is Kind.NONE:
            what = f"{named.path} needs no MPI; nothing will be proved of it"
            yield _ok("program", what, f"named by {named.asked}")


def libraries(plan: Plan) -> Iterator[Finding]:
    """A program that is linked to a library which is nowhere in the image does not start."""
    for named in reach(plan.facts, plan.request).programs:
        lost = _lost(plan, named.path) if named.kind is Kind.LINKED else {}
        for name, by in lost.items():
            finding = error(
                "program-library", program=named.asked, name=name, by=by, image=plan.image
            )
            unsure = named.perhaps or _may_be_bound(plan, name, by)
            yield replace(finding, severity=Severity.WARNING) if unsure else finding


def modules(plan: Plan) -> Iterator[Finding]:
    """A Python package is imported whose modules all are linked to a library that is nowhere in the image."""
    reached = reach(plan.facts, plan.request)
    words = {program.words for program in reached.programs if program.kind is Kind.PYTHON}
    sure = {n for of in words for n in surely_imported(plan.facts, plan.request, of)}
    packages: dict[str, list[str]] = {}
    for elf in reached.files if words else ():
        packages.setdefault(package_of(elf.path)[1], []).append(elf.path)
    for package in sorted(sure.intersection(packages).difference(plan.request.python_modules)):
        lost = [_lost(plan, path) for path in packages[package]]
        if not all(lost):
            continue
        name, by = next(iter(lost[0].items()))
        finding = error("module-library", package=package, name=name, by=by, image=plan.image)
        unsure = len(words) > 1 or _may_be_bound(plan, name, by)
        yield replace(finding, severity=Severity.WARNING) if unsure else finding


def _lost(plan: Plan, path: str) -> dict[str, str]:
    """The libraries that a file needs and a plan's container has nowhere, each with the file that needs it."""
    lacking = plan.facts.lacking.get(path, {})
    staged = plan.staging.lacking if plan.staging else list
    return {n: lacking[n] for n in staged(n for n in lacking if not _DRIVERS.match(n))}


def _may_be_bound(plan: Plan, name: str, by: str) -> bool:
    """Whether what is bound from this machine, or the engine brings, lies where a file's loader looks for a library."""
    request = plan.request
    elf = next((elf for elf in plan.facts.consumers if elf.path == by), None)
    own = [*elf.rpath_folders, *elf.runpath_folders] if elf else []
    places = [
        PurePosixPath(folder, name) for folder in (*folders_behind(request), *own, *_SYSTEM_FOLDERS)
    ]
    targets = [bind.target for bind in (*request.binds, *plan.binds)]
    return bool(request.engine_args) or any(p.is_relative_to(t) for p in places for t in targets)


def on_path(plan: Plan) -> Iterator[Finding]:
    """A program that is named without its folder must be in PATH; one of ``--app`` may be started by another way."""
    request, path = plan.request, _path(plan)
    for name in dict.fromkeys((*request.command[:1], *request.apps)):
        if places := off_path(plan.facts, replace(request, binds=plan.binds), path, name):
            finding = error(
                "program-off-path",
                name=name,
                image=plan.image,
                path=path,
                places=some(list(places)),
                place=places[0],
            )
            started = name in request.command[:1]
            yield finding if started else replace(finding, severity=Severity.WARNING)


def families(plan: Plan) -> Iterator[Finding]:
    """One MPI is swapped: what is compiled for another family keeps the image's."""
    reached = reach(plan.facts, plan.request)
    users = by_family(plan.facts, reached)
    if len(users) < 2:
        return
    given = {"image": plan.image, "mapped": plan.family, "users": _users(users)}
    names = tuple(dict.fromkeys(p.asked for p in reached.programs))
    alone = {n: reach(plan.facts, replace(plan.request, apps=(n,))) for n in names}
    mixed = [n for n, of in alone.items() if of.exact and len(by_family(plan.facts, of)) > 1]
    for name in mixed:
        yield error("families-in-one", program=name, **given)
    if not mixed and (reached.exact or not names):
        yield error("families", app=next(iter(users.values()))[0].path, **given)
    elif not mixed:
        others = {f: files for f, files in users.items() if f is not plan.family}
        given["users"] = _users(others)
        yield warning("families-in-reach", program=", ".join(names), **given)


def _users(users: Mapping[AbiFamily, Sequence[Elf]]) -> str:
    return "; ".join(f"{f}: {some([e.path for e in files])}" for f, files in users.items())


def pmi(plan: Plan) -> Iterator[Finding]:
    """Under srun, ranks find each other only through a PMI that both Slurm and their MPI support."""
    launcher, extra = plan.launcher, plan.request.shape.extra
    mapped = _speaks(plan)
    if launcher.kind != "srun" or plan.request.ranks < 2 or mapped is AbiFamily.UNKNOWN:
        return
    title = plan.planned_title or mapped
    way = pmi_named((*launcher.options, *extra)) or launcher.pmi
    if not way and plan.site.launcher.pmi[:1] == ("cray",) and mapped is AbiFamily.MPICH:
        yield _ok("pmi", "Slurm's default is Cray's own here; the proof will show", launcher.path)
    elif not way:
        pmix = "pmix" if mapped is AbiFamily.OPENMPI else "pmi2"
        yield error("pmi-missing", title=title, launcher=launcher, mapped=mapped, pmix=pmix)
    elif way == "none" or connects(way, mapped) not in (mapped, AbiFamily.UNKNOWN):
        where = shlex.join((launcher.path, *launcher.options, *extra))
        yield error("pmi-wrong", way=way, title=title, where=where)
    else:
        yield _ok("pmi", f"srun --mpi={way} connects MPIs of the {mapped} family", launcher.path)


def _path(plan: Plan) -> str:
    """PATH of the container; empty where scripts of the image, which Apptainer reads, or options of the engine may decide it."""
    if plan.request.engine_args:
        return ""
    scripts = any(path.startswith("/.singularity.d/") for path in plan.facts.programs)
    around = not scripts and plan.engine.kind == "apptainer" and "PATH" not in plan.request.searched
    default = {"PATH": DEFAULT_PATH, **plan.request.image_env} if around else plan.request.image_env
    return searched_path(replace(plan.request, image_env=default))


def login(plan: Plan) -> Iterator[Finding]:
    """A login shell of Debian's forgets the image's PATH: it finds no program there, or another one of that name."""
    for lost in lost_by_login(plan.facts, plan.request):
        yield warning(
            "program-login-shell", shell=lost.shell, names=", ".join(lost.places),
            place=next(iter(lost.places.values())), path=searched_path(plan.request),
        )  # fmt: skip


def descriptors(plan: Plan) -> Iterator[Finding]:
    """BSD's csh and sudo close what they inherit, the connection to Hydra too, and start every program without it."""
    if kind_of(plan.launcher) != "hydra":
        return
    closing: dict[Finding, bool] = {}  # several programs of a name are one
    for named, alone in named_within(plan.facts, plan.request):
        given = {"program": named.asked, "launcher": plan.launcher}
        shells = [path for path in named.chain if path.endswith("/bsd-csh")]
        findings = [error("program-cuts-off", shell=shell, **given) for shell in shells]
        if wrappers.closes(named.words or (named.asked,)):
            findings.append(error("program-closes", **given))
        for finding in findings:
            closing[finding] = closing.get(finding, False) or alone
    for finding, alone in closing.items():
        # Of several programs of a text it is not known which use MPI.
        yield finding if alone else replace(finding, severity=Severity.WARNING)


def environment(plan: Plan) -> Iterator[Finding]:
    """What starts its program without the variables by which a launcher connects the ranks leaves each alone."""
    if plan.request.ranks < 2 or is_in_image(plan.launcher):
        return
    ways: dict[str, bool] = {}
    needed = connected_by(plan.launcher)
    for named, alone in named_within(plan.facts, plan.request):
        if how := wrappers.cleans(named.words or (named.asked,), needed):
            ways[how] = ways.get(how, False) or alone
    for how, alone in ways.items():
        finding = error("program-environment", how=how, launcher=plan.launcher)
        # Of several programs of a text it is not known which use MPI.
        yield finding if alone else replace(finding, severity=Severity.WARNING)


def launcher_family(plan: Plan) -> Iterator[Finding]:
    """A launcher of another family starts every rank alone, without an error."""
    launcher, mapped = plan.launcher, _speaks(plan)
    if launcher.kind == "srun" or mapped is AbiFamily.UNKNOWN:
        return  # srun starts any family, and `pmi` checks how ranks connect; of an unknown one only the proof can say
    if is_in_image(launcher):
        yield _ok("launcher-family", "the image's own launcher starts its own MPI", launcher.path)
        return
    if launcher.family is AbiFamily.UNKNOWN:
        yield warning("launcher-family-unknown", launcher=launcher)
    elif launcher.family is not mapped:
        title = plan.planned_title or mapped
        yield error(
            "launcher-family-mismatch", launcher=launcher, title=title, mapped=mapped, own=plan.own_launcher
        )  # fmt: skip
    else:
        what = f"launcher and MPI are of the {mapped} family"
        yield _ok("launcher-family", what, launcher.title)


def _speaks(plan: Plan) -> AbiFamily:
    """The family whose launchers can start the mapped MPI."""
    return speaking(plan.facts, plan.request, plan.host.library if plan.host else None)


@_of_swap
def symbols(plan: Plan, host: HostMpi) -> Iterator[Finding]:
    """The host's library must define every ``MPI_*`` function that the image calls."""
    library = host.library
    if library.family is not plan.family:
        return
    # The image's Fortran and C++ bindings stay in place.
    bindings = (elf for elf in plan.facts.consumers if elf.soname)
    offered = {s for e in (library.elf, *host.companions, *bindings) for s in e.mpi_exports}
    linked = link(plan, host)
    own = own_functions(plan.facts)
    files = (elf for elf in plan.consumers if elf.path in linked.files)
    calling = (replace(elf, mpi_imports=called(elf, own)) for elf in files)
    looked_at = [elf for elf in calling if elf.mpi_imports]
    findings = [*_not_defined(library, looked_at, offered), *_not_linked(library, linked)]
    reached = reach(plan.facts, plan.request)
    sure = in_text_closure(plan.facts, reached) if findings else set[str]()
    if findings and sure:
        # Of what a script or the command names it is known what will run; the rest only may.
        named = replace(plan, consumers=tuple(e for e in plan.consumers if e.path in sure))
        known = [elf for elf in looked_at if elf.path in sure]
        certain = [
            *_not_defined(library, known, offered),
            *_not_linked(library, link(named, host)),
        ]
        findings = [f if f in certain else replace(f, severity=Severity.WARNING) for f in findings]
    elif findings:
        unfit = {*linked.unfit, *(e.path for e in looked_at if set(e.mpi_imports) - offered)}
        unfit |= {
            p for p in linked.files if unfit.intersection(plan.facts.parts.get(p, {}).values())
        }
        if perhaps_fit(plan.facts, reached, plan.consumers, unfit):
            findings = [replace(f, severity=Severity.WARNING) for f in findings]
    complete = not findings
    doubts = reached.doubts if findings else {}
    yield from _together(
        library, [_in_doubt(finding, doubts) for finding in findings], linked.lacks
    )
    count = len({s for e in looked_at for s in e.mpi_imports})
    if not count and not linked.needs:
        yield from _unseen(plan)
    elif complete:
        what = f"all {count} MPI functions that the image calls are in the host's library"
        if not count:
            what = f"all {linked.needs} symbols of its MPI that the image needs are in the host's"
        why = f"{len(looked_at)} files; {library.title} reaches MPI {library.level}"
        yield _ok("symbols", what, why)


def _in_doubt(finding: Finding, doubts: Mapping[str, str]) -> Finding:
    """With why it is not certain that the file of a finding is loaded at all."""
    doubt = doubts.get(finding.where)
    return replace(finding, why=f"{finding.why}; {doubt}") if doubt else finding


def _not_defined(
    library: MpiLibrary, files: Iterable[Elf], offered: Collection[str]
) -> Iterator[Finding]:
    for elf in files:
        if lacking := sorted(set(elf.mpi_imports).difference(offered)):
            yield error("symbols", elf=elf, library=library, missing=some(lacking, 5))


def _not_linked(library: MpiLibrary, linked: Linked) -> Iterator[Finding]:
    """What the loader would not find, or find twice."""
    for lack in linked.lacks:
        if lack.at_once or not is_interface(lack.elf):
            yield error("symbols-internal", **_lacking(library, lack))
        else:
            yield warning("symbols-internal-called", **_lacking(library, lack))
    for bare in linked.bare:
        yield error("interface-bare", bare=bare, library=library, kinds=", ".join(bare.kinds))
    for path in linked.apart:
        yield error("interface-apart", path=path, library=library)
    for twice in linked.twice:
        yield error("two-libraries", twice=twice, library=library)


def _lacking(library: MpiLibrary, lack: Lack) -> dict[str, object]:
    missing = some(lack.symbols, 5)
    return {"elf": lack.elf, "library": library, "missing": missing, "own": lack.library}


def _together(
    library: MpiLibrary, findings: Sequence[Finding], lacks: Iterable[Lack]
) -> Iterator[Finding]:
    """With one finding for files that lack the same, for the same reason: of one package there are dozens."""
    single = {error("symbols-internal", **_lacking(library, lack)).what for lack in lacks}
    like: dict[Finding, list[Finding]] = {}
    for finding in findings:
        shared = replace(finding, what="", where="") if finding.what in single else finding
        like.setdefault(shared, []).append(finding)
    for shared, of in like.items():
        if len(of) == 1:
            yield of[0]
            continue
        given = {"library": library, "count": len(of), "files": some([f.where for f in of])}
        several = error("symbols-internal-several", **given)
        yield replace(shared, what=several.what, where=several.where)


def _unseen(plan: Plan) -> Iterator[Finding]:
    """No file was looked at, which says nothing, unless it is known that there is none."""
    reached = reach(plan.facts, plan.request)
    if not any(map(contains_mpi, reached.files)) and (
        not reached.programs or any(p.kind not in _SETTLED for p in reached.programs)
    ):
        names = ", ".join(programs_of(plan.request)) or plan.image
        yield warning("symbols-unknown", names=names)


@_of_swap
def glibc(plan: Plan, host: HostMpi) -> Iterator[Finding]:
    """The host's libraries must run on the image's C and C++ libraries."""
    facts = plan.facts
    staged = {f.source for f in plan.staging.files} if plan.staging else set()
    parts = tuple(e for e in host.parts if e.path in staged and not GLIBC_PIECES.match(e.soname))
    used = tuple(e for e in parts if e.path not in _idle(plan, host))
    fits = True
    if plan.glibc and plan.glibc.pieces:
        fits = False
        yield from _other_glibc(plan, host, plan.glibc)
    elif lacking := _lacking_pieces(plan, used):
        fits = False
        yield error("glibc-piece-missing", library=host.library, image=plan.image, lacking=lacking)
    for prefix, have, name, runtime in (
        ("GLIBC", facts.glibc, "glibc", None),
        ("GLIBCXX", facts.libstdcxx, "libstdc++", "libstdc++.so.6"),
        ("GFORTRAN", facts.libgfortran, "libgfortran", "libgfortran.so.5"),
    ):
        if prefix == "GLIBC" and not fits:
            continue
        if runtime in {e.soname for e in parts}:
            continue  # the host's newer library is staged too
        version, who = needs(parts if prefix == "GLIBC" else used, prefix)
        if version_key(version) > version_key(have):
            fits = False
            yield error(
                "glibc-too-old" if have else "glibc-library-missing",
                library=host.library,
                name=name,
                who=who,
                prefix=prefix,
                version=version,
                os=facts.os,
                have=have,
            )
    if fits:
        need = needs(parts)[0] or "-"
        yield _ok("glibc", f"the host's libraries need glibc {need}, the image has {facts.glibc}")


def _lacking_pieces(plan: Plan, parts: Iterable[Elf]) -> str:
    """The pieces of glibc that files of the host need by name, and that the image, which has a glibc, is without."""
    asked = {n for e in parts for n in e.needed if GLIBC_PIECES.match(n)}
    # The loader runs already, wherever it is.
    lacking = (n for n in asked.difference(plan.facts.runtime) if not n.startswith("ld-linux"))
    return ", ".join(sorted(lacking)) if plan.facts.runtime and plan.facts.glibc else ""


def _idle(plan: Plan, host: HostMpi) -> set[str]:
    """Paths of the host's interfaces to other languages that are staged, and that nothing will load."""
    asked = {name for elf in plan.consumers for name in elf.needed}
    asked |= {name for elf in host.parts if elf not in host.companions for name in elf.needed}
    links = plan.staging.aliases if plan.staging else ()
    asked |= {target for link, target in links if link.rpartition("/")[2] in asked}
    return {elf.path for elf in host.companions if elf.name not in asked}


def _other_glibc(plan: Plan, host: HostMpi, glibc: Glibc) -> Iterator[Finding]:
    version, image = host_glibc(host), plan.image
    if glibc.way is GlibcWay.NONE:
        lacking = ", ".join(glibc.lacking)
        yield error("glibc-no-replacement", version=version, plan=plan, lacking=lacking)
        return
    how = "takes the place of the image's, file by file"
    if glibc.way is GlibcWay.LOADER:
        how = "starts the program by its own loader"
    why = f"the host's libraries need GLIBC_{glibc.need}, the image has {plan.facts.glibc}"
    yield _ok("glibc", f"the host's glibc {version} {how}", why)
    if glibc.left:
        yield warning("glibc-mixed", left=", ".join(glibc.left), image=image, version=version)


@_of_swap
def rpath(plan: Plan, host: HostMpi) -> Iterator[Finding]:
    """DT_RPATH takes precedence over LD_LIBRARY_PATH: the program keeps the image's MPI and exits with 0."""
    if host.library.family is not plan.family:
        return  # `abi-family` reports it, and no other search path would help
    # Of another family, as MPICH 5's libmpi_abi next to its libmpi, none will be asked for.
    left = {m.path for m in plan.facts.mpis if m.family is plan.family} - set(plan.bound)
    held = {path.rpartition("/")[0] for path in left}
    tied = [
        elf
        for elf in plan.consumers
        if held.intersection(elf.rpath_folders) or left.intersection(elf.tied)
    ]
    named = in_text(plan.facts, reach(plan.facts, plan.request))
    others = [e.path for e in tied if named and e.can_start and e.path not in named]
    for elf in tied:
        if elf.path not in others:
            yield error("rpath", elf=elf, rpath=":".join(elf.rpath))
    if others:
        yield warning("rpath-others", image=plan.image, programs=some(others))
    if not tied:
        what = "no program of the image is tied to the image's MPI by DT_RPATH"
        if plan.bound:
            shown = ", ".join(plan.bound[:3]) + (
                f" and {n} more" if (n := len(plan.bound) - 3) > 0 else ""
            )
            what = f"the host's MPI is shown over {shown}"
        yield _ok("rpath", what)


def static(plan: Plan) -> Iterator[Finding]:
    """The MPI inside a program can neither be replaced nor, without a library, be watched."""
    reached = reach(plan.facts, plan.request)
    certain = {elf.path for elf in reached.files} if reached.exact else set()
    certain |= reached.certain
    certain |= started(plan.facts, reached)
    contain = [elf for elf in reached.files if contains_mpi(elf)]
    for elf in contain:
        if elf.path in certain:
            yield warning("static-own", elf=elf) if plan.host is None else error("static", elf=elf)
    for named in reached.programs:
        if unpacked := plan.facts.unpacks.get(named.path, ()):
            finding = error("static-unpacked", path=named.path, names=", ".join(unpacked))
            yield replace(finding, severity=Severity.WARNING) if named.perhaps else finding
    if others := [elf.path for elf in contain if elf.path not in certain]:
        yield warning("static-others", image=plan.image, programs=some(others))


@_of_swap
def python_prefix(plan: Plan, host: HostMpi) -> Iterator[Finding]:
    """mpi4py loads an MPI in its Python prefix before any other."""
    if not reach(plan.facts, plan.request).may_import:
        return
    for mpi in plan.facts.mpis:
        of_family = mpi.family is host.library.family
        if of_family and mpi.python_prefix and mpi.path not in plan.bound:
            yield error("python-prefix", mpi=mpi)


@_of_swap
def names(plan: Plan, host: HostMpi) -> Iterator[Finding]:
    """Every SONAME by which the image requests its MPI must lead to the host's."""
    if plan.staging is None or host.library.family is not plan.family:
        return
    lacking = plan.staging.lacking(plan.names)
    for name in lacking:
        users = some([e.path for e in plan.consumers if name in e.needed]) or plan.image
        yield error("alias", mount=MOUNT, name=name, users=users, soname=host.library.soname)
    if not lacking:
        yield _ok("alias", f"{', '.join(plan.names)}: each name leads to the host's library")


@_of_swap
def closure(plan: Plan, host: HostMpi) -> Iterator[Finding]:
    """Every library that the host's MPI needs must exist."""
    for name, by in host.missing:
        yield error("closure", name=name, by=by)
    if not host.missing:
        what = f"all {len(host.closure)} libraries behind the host's MPI were found"
        yield _ok("closure", what)


def namespaces(plan: Plan) -> Iterator[Finding]:
    """The ranks of a node must share memory; options that isolate them cause a hang or an abort."""
    engine, request = plan.engine, plan.request
    parting = ENGINES.get(engine.kind).parting_options if engine.kind in ENGINES else {}
    bad = [o for o in request.engine_args if o in parting] if request.ranks > 1 else []
    for option in bad:
        yield error("namespaces-engine-option", option=option, parting=parting[option])
    if bad:
        return
    if how := parted_by(plan.facts, request):
        yield info("namespaces-of-command", how=how)
    elif engine.parts_ranks:
        yield info("namespaces-per-rank", engine=engine)
    elif engine.joins:
        what = "the ranks of a node share one container, with /dev/shm, PIDs, IPC and the user namespace"
        yield _ok("namespaces", what)
    else:
        what = "the ranks of a node share /dev/shm, PIDs, IPC and the user namespace"
        yield _ok("namespaces", what)


def engine_settings(plan: Plan) -> Iterator[Finding]:
    """Settings by which an administrator forbids binds, which the engine then silently drops."""
    engine = plan.engine
    if engine.forbids_binds and plan.binds:
        if plan.host:
            yield error("engine-settings-binds-mpi", engine=engine)
        else:
            yield error("engine-settings-binds-proof", engine=engine)
    for folder, setting in engine.hides if plan.request.ranks > 1 else ():
        # The engine drops a bind over a folder that the container has already.
        bound = folder != "/dev/shm" and folder in {bind.target for bind in plan.binds}
        if folder == "/dev/shm" or (_speaks(plan) is AbiFamily.OPENMPI and not bound):
            yield error(
                "engine-settings-private-tmp"
                if folder == "/tmp"
                else "engine-settings-private-folder",
                folder=folder,
                engine=engine,
                setting=setting,
            )


def user_libraries(plan: Plan) -> Iterator[Finding]:
    """A preloaded MPI would be mapped in addition to the planned one."""
    for word in plan.request.preload.replace(":", " ").split():
        if is_request(word.rpartition("/")[2]):
            yield error("preload", word=word)


@_of_swap
def gpu(plan: Plan, host: HostMpi) -> Iterator[Finding]:
    """Requested GPU support needs its transport library; without it MPI_Init aborts."""
    if not plan.request.gpu:
        return
    if library := gpu_transport(host, plan.request):
        yield _ok("gpu-transport", "the GPU transport library is preloaded", library.path)
    elif host.library.vendor == "Cray MPICH":
        yield error("gpu-transport", library=host.library)


@_of_swap
def architecture(plan: Plan, host: HostMpi) -> Iterator[Finding]:
    """Image and host must be for the same processor architecture."""
    arch, machine = plan.facts.arch, host.library.elf.machine
    if arch and machine != arch:
        yield error("architecture", arch=arch, machine=machine, image=plan.image)


def network(plan: Plan) -> Iterator[Finding]:
    """The host's network plugin must serve the image's NCCL; see :mod:`fairlead.nccl.checks`."""
    if (case := nccl_case(plan)) is None:
        if plan.nccl_ask.want not in ("auto", "image"):
            yield not_in_image(plan.nccl_ask.want, plan.image)
        return
    findings = [finding for nccl_check in NCCL_CHECKS for finding in nccl_check.look(case)]
    yield from findings
    if case.plan and not any(f.severity is Severity.ERROR for f in findings):
        plugin, library = case.plan.host.plugin, case.library
        what = f"{plugin.title} of the host serves {library.title} of the image"
        how = f"net interface v{case.plan.interface}, " if case.plan.interface else ""
        yield _ok("nccl", what, f"{how}{plugin.path}")


CHECKS: tuple[Check, ...] = (
    architecture, program, libraries, modules, on_path, login, descriptors, environment, families, gpu, abi_family, launcher_family, pmi, symbols, glibc, rpath, static,
    python_prefix, names, closure, namespaces, engine_settings, user_libraries, carried, network,
)  # fmt: skip
