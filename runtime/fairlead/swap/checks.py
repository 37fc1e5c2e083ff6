"""Preflight: will this plan work? Each check reads only facts, and its failure names a remedy.

Most valuable are the checks for failures that look like success: the wrong launcher, a missing
alias or a DT_RPATH ends with exit code 0 on the wrong MPI, or with every rank alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from fairlead.base.errors import Finding, Severity, error, info, warning
from fairlead.elf.facts import AbiFamily, Elf
from fairlead.elf.mpi_symbols import GLIBC_PIECES, family_of_soname
from fairlead.elf.reader import version_key
from fairlead.engines.registry import ENGINES
from fairlead.launchers.pmi import connects, pmi_said
from fairlead.mpi.cross_abi import crossing
from fairlead.mpi.host import needs
from fairlead.swap.family import image_family, own_mpi, programs_of, speaks
from fairlead.swap.glibc import Glibc, GlibcWay, host_glibc
from fairlead.swap.model import MOUNT, Plan
from fairlead.swap.remedies.gpu_transport import gpu_transport

Check = Callable[[Plan], Iterator[Finding]]
_RUNTIME = {"GLIBCXX": "libstdc++.so.6", "GFORTRAN": "libgfortran.so.5"}


def check(plan: Plan) -> tuple[Finding, ...]:
    """Every finding about a plan. Most checks that pass report that, with severity OK."""
    return tuple(finding for run in CHECKS for finding in run(plan))


def refused(findings: tuple[Finding, ...]) -> bool:
    """Whether any finding stops the launch."""
    return any(f.severity is Severity.ERROR for f in findings)


def _ok(check_name: str, what: str, why: str = "") -> Finding:
    return Finding(Severity.OK, what, why=why, check=check_name)


def abi_family(plan: Plan) -> Iterator[Finding]:
    """Image and host must have the same binary interface."""
    if plan.host is None:
        yield _ok("abi-family", "the image's own MPI is used", plan.planned_title)
        return
    wanted, offered = (
        image_family(plan.facts, programs_of(plan.request)),
        plan.host.library.family,
    )
    if wanted is not offered and plan.family is offered:
        yield _ok(
            "abi-family",
            f"mpi4py crosses from the image's {wanted} family to the host's {offered} family",
            plan.consumers[0].path,
        )
    elif wanted is not offered:
        over = crossing(plan.facts, programs_of(plan.request), offered)
        yield error(
            "abi-family",
            library_title=plan.host.library.title,
            library_path=plan.host.library.path,
            wanted=wanted,
            names=", ".join(plan.names),
            offered=offered,
            soname=plan.host.library.soname,
            why=f"; {over.why_not}" if over.modules else "",
            remedy=f"{over.instead}; or " if over.instead else "",
        )
    else:
        yield _ok(
            "abi-family", f"image and host are of the {wanted} family", plan.host.library.soname
        )


def pmi(plan: Plan) -> Iterator[Finding]:
    """Under srun, ranks find each other only through a PMI that both Slurm and their MPI support."""
    launcher, asked = plan.launcher, plan.request.shape.extra
    if launcher.kind != "srun" or plan.request.ranks < 2:
        return
    mapped = _speaks(plan)
    said = pmi_said((*launcher.options, *asked)) or launcher.pmi
    if not said and plan.site.launcher.pmi[:1] == ("cray",) and mapped is AbiFamily.MPICH:
        yield _ok("pmi", "Slurm's default is Cray's own here; the proof will show", launcher.path)
    elif not said:
        yield error(
            "pmi-missing",
            planned_title=plan.planned_title or mapped,
            launcher_path=launcher.path,
            mapped=mapped,
            pmix="pmix" if mapped is AbiFamily.OPENMPI else "pmi2",
        )
    elif said == "none" or connects(said, mapped) not in (mapped, AbiFamily.UNKNOWN):
        yield error(
            "pmi-wrong",
            said=said,
            planned_title=plan.planned_title or mapped,
            where=shlex.join((launcher.path, *launcher.options, *asked)),
        )
    else:
        yield _ok("pmi", f"srun --mpi={said} connects MPIs of the {mapped} family", launcher.path)


def launcher_family(plan: Plan) -> Iterator[Finding]:
    """A launcher of another family starts every rank alone, without an error."""
    if plan.launcher.kind == "srun":
        return  # srun starts any family; `pmi` checks how the ranks connect
    mapped = _speaks(plan)
    offered = plan.launcher.family
    if offered is not mapped and offered is not AbiFamily.UNKNOWN:
        yield error(
            "launcher-family-mismatch",
            launcher_title=plan.launcher.title,
            planned_title=plan.planned_title or mapped,
            launcher_path=plan.launcher.path,
            offered=offered,
            mapped=mapped,
        )
    elif offered is AbiFamily.UNKNOWN:
        yield warning("launcher-family-unknown", launcher_path=plan.launcher.path)
    else:
        yield _ok(
            "launcher-family", f"launcher and MPI are of the {mapped} family", plan.launcher.title
        )


def _speaks(plan: Plan) -> AbiFamily:
    """The family whose launchers can start the mapped MPI."""
    family = image_family(plan.facts, programs_of(plan.request))
    return speaks(plan.host.library if plan.host else own_mpi(plan.facts, family), family)


def symbols(plan: Plan) -> Iterator[Finding]:
    """The host's library must define every ``MPI_*`` function that the image calls."""
    if plan.host is None or plan.host.library.family is not plan.family:
        return
    offered = set(plan.host.library.elf.mpi_exports)
    for part in plan.host.companions:
        offered.update(part.mpi_exports)
    for elf in plan.facts.consumers:  # the image's Fortran and C++ bindings stay in place
        if elf.soname:
            offered.update(elf.mpi_exports)
    bad = False
    for elf in plan.consumers:
        lacking = sorted(set(elf.mpi_imports) - offered)
        if lacking:
            bad = True
            yield error(
                "symbols",
                elf_path=elf.path,
                library_title=plan.host.library.title,
                library_path=plan.host.library.path,
                lacking=", ".join(lacking[:5]),
                why=f" and {len(lacking) - 5} more" if len(lacking) > 5 else "",
                level=plan.host.library.level,
            )
    if not bad:
        count = len({s for e in plan.consumers for s in e.mpi_imports})
        yield _ok(
            "symbols",
            f"all {count} MPI functions that the image calls are in the host's library",
            f"{len(plan.consumers)} files; {plan.host.library.title} reaches MPI {plan.host.library.level}",
        )


def glibc(plan: Plan) -> Iterator[Finding]:
    """The host's libraries must run on the image's C and C++ libraries."""
    if plan.host is None:
        return
    staged = {f.source for f in plan.staging.files} if plan.staging else set()
    parts = tuple(e for e in plan.host.parts if e.path in staged and not _is_glibc(e))
    bad = False
    for prefix, have, name in (
        ("GLIBC", plan.facts.glibc, "glibc"),
        ("GLIBCXX", plan.facts.libstdcxx, "libstdc++"),
        ("GFORTRAN", plan.facts.libgfortran, "libgfortran"),
    ):
        if prefix in _RUNTIME and any(e.soname == _RUNTIME[prefix] for e in parts):
            continue  # the host's newer library is staged too
        if prefix == "GFORTRAN" and not any("libgfortran.so.5" in e.needed for e in plan.consumers):
            continue  # only the host's Fortran interface needs it, and the image does not use that
        version, who = needs(parts, prefix)
        if prefix == "GLIBC" and plan.glibc and plan.glibc.pieces:
            yield from _other_glibc(plan, plan.glibc)
            bad = True
            continue
        if version and not have:
            bad = True
            yield error(
                "glibc-library-missing",
                library_title=plan.host.library.title,
                name=name,
                who=who,
                prefix=prefix,
                version=version,
                os=plan.facts.os,
            )
        elif version and version_key(version) > version_key(have):
            bad = True
            yield error(
                "glibc-too-old",
                library_title=plan.host.library.title,
                name=name,
                who=who,
                prefix=prefix,
                version=version,
                os=plan.facts.os,
                have=have,
            )
    if not bad:
        version, _ = needs(parts)
        yield _ok(
            "glibc",
            f"the host's libraries need glibc {version or '-'}, the image has {plan.facts.glibc}",
        )


def _is_glibc(elf: Elf) -> bool:
    return bool(GLIBC_PIECES.match(elf.soname))


def _other_glibc(plan: Plan, glibc: Glibc) -> Iterator[Finding]:
    assert plan.host is not None
    version = host_glibc(plan.host)
    how = "takes the place of the image's, file by file"
    if glibc.way is GlibcWay.LOADER:
        how = "starts the program by its own loader"
    elif glibc.way is GlibcWay.NONE:
        yield error(
            "glibc-no-replacement",
            version=version,
            glibc=plan.facts.glibc,
            plan_image=plan.image,
            by=glibc.by,
            glibc_need=glibc.need,
            lacking=", ".join(glibc.lacking),
        )
        return
    yield _ok(
        "glibc",
        f"the host's glibc {version} {how}",
        f"the host's libraries need GLIBC_{glibc.need}, the image has {plan.facts.glibc}",
    )
    if glibc.left:
        yield warning(
            "glibc-mixed",
            left=", ".join(glibc.left),
            plan_image=plan.image,
            version=version,
        )


def rpath(plan: Plan) -> Iterator[Finding]:
    """DT_RPATH takes precedence over LD_LIBRARY_PATH: the program keeps the image's MPI and exits with 0."""
    if plan.host is None:
        return
    held = {m.path.rpartition("/")[0] for m in plan.facts.mpis if m.path not in plan.bound}
    bad = False
    for elf in plan.consumers:
        if held.intersection(elf.rpath_folders):
            bad = True
            yield error("rpath", elf_path=elf.path, rpath=":".join(elf.rpath))
    if not bad:
        what = "no program of the image is tied to the image's MPI by DT_RPATH"
        if plan.bound:
            what = (
                f"the host's MPI is shown over {', '.join(plan.bound)}, where programs look first"
            )
        yield _ok("rpath", what)


def static(plan: Plan) -> Iterator[Finding]:
    """The MPI of a statically linked program cannot be replaced."""
    for elf in plan.consumers:
        wraps = "PMPI_Init" in elf.mpi_imports  # a tracer, which also defines MPI_Init
        if "MPI_Init" in elf.mpi_exports and not (elf.soname or wraps) and plan.host is not None:
            yield error("static", elf_path=elf.path)


def python_prefix(plan: Plan) -> Iterator[Finding]:
    """mpi4py loads an MPI in its Python prefix before any other."""
    if plan.host is None:
        return
    for mpi in plan.facts.mpis:
        if mpi.python_prefix and mpi.path not in plan.bound:
            yield error(
                "python-prefix",
                mpi_title=mpi.title,
                python_prefix=mpi.python_prefix,
                mpi_path=mpi.path,
            )


def names(plan: Plan) -> Iterator[Finding]:
    """Every SONAME by which the image requests its MPI must lead to the host's."""
    if plan.staging is None or plan.host is None or plan.host.library.family is not plan.family:
        return
    there = {f.target for f in plan.staging.files} | {link for link, _ in plan.staging.aliases}
    lacking = [n for n in plan.names if f"lib/{n}" not in there]
    for name in lacking:
        users = [e.path for e in plan.consumers if name in e.needed]
        yield error(
            "alias",
            mount=MOUNT,
            name=name,
            users=", ".join(users[:3]) or plan.image,
            soname=plan.host.library.soname,
        )
    if not lacking:
        yield _ok("alias", f"{', '.join(plan.names)}: each name leads to the host's library")


def closure(plan: Plan) -> Iterator[Finding]:
    """Every library that the host's MPI needs must exist."""
    if plan.host is None:
        return
    for name, by in plan.host.missing:
        yield error("closure", name=name, by=by)
    if not plan.host.missing:
        yield _ok(
            "closure", f"all {len(plan.host.closure)} libraries behind the host's MPI were found"
        )


def namespaces(plan: Plan) -> Iterator[Finding]:
    """The ranks of a node must share memory; options that isolate them cause a hang or an abort."""
    parting = ENGINES.get(plan.engine.kind).parting_options if plan.engine.kind in ENGINES else {}
    bad = [o for o in plan.request.engine_args if o in parting]
    for option in bad if plan.request.ranks > 1 else ():
        yield error("namespaces-engine-option", option=option, parting=parting[option])
    if bad and plan.request.ranks > 1:
        return
    if plan.engine.userns_per_rank:
        yield info("namespaces-per-rank", engine_path=plan.engine.path)
    else:
        yield _ok(
            "namespaces", "the ranks of a node share /dev/shm, PIDs, IPC and the user namespace"
        )


def engine_settings(plan: Plan) -> Iterator[Finding]:
    """Settings by which an administrator forbids binds, which the engine then silently drops."""
    engine = plan.engine
    ask = f"ask an administrator to change it in {engine.config}"
    if engine.forbids_binds and plan.binds:
        yield error(
            "engine-settings-binds-mpi" if plan.host else "engine-settings-binds-proof",
            engine_config=engine.config,
            forbids_binds=engine.forbids_binds,
            ask=ask,
        )
    if plan.request.ranks < 2:
        return
    for folder, setting in engine.hides:
        # The engine drops a bind over a folder that the container has already.
        bound = folder != "/dev/shm" and folder in {bind.target for bind in plan.binds}
        if folder == "/dev/shm" or (_speaks(plan) is AbiFamily.OPENMPI and not bound):
            yield error(
                "engine-settings-private-folder"
                if folder != "/tmp"
                else "engine-settings-private-tmp",
                folder=folder,
                engine_config=engine.config,
                setting=setting,
                ask=ask,
            )


def user_libraries(plan: Plan) -> Iterator[Finding]:
    """A preloaded MPI would be mapped in addition to the planned one."""
    for word in plan.request.preload.replace(":", " ").split():
        name = word.rsplit("/", 1)[-1]
        if family_of_soname(name) is not AbiFamily.UNKNOWN:
            yield error("preload", word=word)


def gpu(plan: Plan) -> Iterator[Finding]:
    """Requested GPU support needs its transport library; without it MPI_Init aborts."""
    if not plan.request.gpu or plan.host is None:
        return
    found = gpu_transport(plan.host, plan.request)
    if found is None and plan.host.library.vendor == "Cray MPICH":
        yield error(
            "gpu-transport",
            library_title=plan.host.library.title,
            library_path=plan.host.library.path,
        )
    elif found is not None:
        yield _ok("gpu-transport", "the GPU transport library is preloaded", found.path)


def architecture(plan: Plan) -> Iterator[Finding]:
    """Image and host must be for the same processor architecture."""
    if plan.host and plan.facts.arch and plan.host.library.elf.machine != plan.facts.arch:
        yield error(
            "architecture",
            arch=plan.facts.arch,
            machine=plan.host.library.elf.machine,
            plan_image=plan.image,
        )


CHECKS: tuple[Check, ...] = (
    architecture,
    gpu,
    abi_family,
    launcher_family,
    pmi,
    symbols,
    glibc,
    rpath,
    static,
    python_prefix,
    names,
    closure,
    namespaces,
    engine_settings,
    user_libraries,
)
