"""Preflight: will this plan work? Each check reads facts only, and says what to do when it fails.

The checks that count are those whose failures look like success: the wrong launcher, a missing
alias, an RPATH all end with exit code 0 and the wrong MPI, or every rank alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from fairlead.base.errors import Finding, Severity, error
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
    """Every finding about a plan, one a check at least: a check that finds nothing wrong says so."""
    return tuple(finding for one in CHECKS for finding in one(plan))


def refused(findings: tuple[Finding, ...]) -> bool:
    """Whether any finding stops the launch."""
    return any(f.severity is Severity.ERROR for f in findings)


def _ok(check_name: str, what: str, why: str = "") -> Finding:
    return Finding(Severity.OK, what, why=why, check=check_name)


def abi_family(plan: Plan) -> Iterator[Finding]:
    """One binary interface on both sides."""
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
            f"the host's {plan.host.library.title or 'MPI'} cannot replace the image's MPI",
            where=plan.host.library.path,
            why=f"the image is of the {wanted} family ({', '.join(plan.names)}), the host's of the "
            f"{offered} family ({plan.host.library.soname}): handles and constants differ, so calls "
            "would crash or run on wrong values" + (f"; {over.why_not}" if over.modules else ""),
            remedy=(f"{over.instead}; or " if over.instead else "")
            + "name a host MPI of the same family with `--mpi PREFIX` (`fairlead site detect` lists "
            "them), or run on the image's own with `--mpi container`",
            check="abi-family",
        )
    else:
        yield _ok(
            "abi-family", f"image and host are of the {wanted} family", plan.host.library.soname
        )


def pmi(plan: Plan) -> Iterator[Finding]:
    """Under srun, ranks find each other only by a way that both Slurm and their MPI know."""
    launcher, asked = plan.launcher, plan.request.shape.extra
    if launcher.kind != "srun" or plan.request.ranks < 2:
        return
    mapped = _speaks(plan)
    said = pmi_said((*launcher.options, *asked)) or launcher.pmi
    if not said and plan.site.launcher.pmi[:1] == ("cray",) and mapped is AbiFamily.MPICH:
        yield _ok("pmi", "Slurm's default is Cray's own here; the proof will show", launcher.path)
    elif not said:
        yield error(
            f"this Slurm offers no way for ranks of {plan.planned_title or mapped} to find each other",
            where=f"{launcher.path} --mpi=list",
            why=f"MPIs of the {mapped} family need "
            + ("pmix" if mapped is AbiFamily.OPENMPI else "pmi2")
            + "; without it each would run alone as rank 0 of 1, with exit code 0",
            remedy="start them by the MPI's own launcher, which Slurm lets pass: --launcher mpiexec",
            check="pmi",
        )
    elif said == "none" or connects(said, mapped) not in (mapped, AbiFamily.UNKNOWN):
        yield error(
            f"--mpi={said} does not connect the ranks of {plan.planned_title or mapped}",
            where=shlex.join((launcher.path, *launcher.options, *asked)),
            why="each would run alone as rank 0 of 1, with exit code 0",
            remedy="leave out --mpi: fairlead takes what the mapped MPI speaks and Slurm offers",
            check="pmi",
        )
    else:
        yield _ok("pmi", f"srun --mpi={said} connects MPIs of the {mapped} family", launcher.path)


def launcher_family(plan: Plan) -> Iterator[Finding]:
    """A launcher of another family starts every rank alone, and nobody says so."""
    if plan.launcher.kind == "srun":
        return  # Slurm starts any; `pmi` is what matters
    mapped = _speaks(plan)
    offered = plan.launcher.family
    if offered is not mapped and offered is not AbiFamily.UNKNOWN:
        yield error(
            f"the launcher is {plan.launcher.title}, the MPI is {plan.planned_title or mapped}",
            where=plan.launcher.path,
            why=f"a launcher of the {offered} family cannot connect ranks of the {mapped} family: each "
            "would run alone as rank 0 of 1, with exit code 0",
            remedy="leave out --launcher, or name the mpiexec that belongs to the MPI that is mapped",
            check="launcher-family",
        )
    elif offered is AbiFamily.UNKNOWN:
        yield Finding(
            Severity.WARNING,
            "the launcher's family cannot be told",
            plan.launcher.path,
            "its --version names no MPI that fairlead knows",
            "the proof will show whether it connects the ranks",
            "launcher-family",
        )
    else:
        yield _ok(
            "launcher-family", f"launcher and MPI are of the {mapped} family", plan.launcher.title
        )


def _speaks(plan: Plan) -> AbiFamily:
    """The family whose launchers the mapped MPI can be started by."""
    family = image_family(plan.facts, programs_of(plan.request))
    return speaks(plan.host.library if plan.host else own_mpi(plan.facts, family), family)


def symbols(plan: Plan) -> Iterator[Finding]:
    """Every ``MPI_*`` that the image calls is in the host's library."""
    if plan.host is None or plan.host.library.family is not plan.family:
        return
    offered = set(plan.host.library.elf.mpi_exports)
    for part in plan.host.companions:
        offered.update(part.mpi_exports)
    for elf in plan.facts.consumers:  # the image's own Fortran and C++ bindings stay in place
        if elf.soname:
            offered.update(elf.mpi_exports)
    bad = False
    for elf in plan.consumers:
        lacking = sorted(set(elf.mpi_imports) - offered)
        if lacking:
            bad = True
            shown = ", ".join(lacking[:5]) + (
                f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
            )
            yield error(
                f"{elf.path} calls what the host's {plan.host.library.title} does not have",
                where=plan.host.library.path,
                why=f"missing: {shown}; it reaches MPI {plan.host.library.level}",
                remedy="build the image against an older MPI (MPICH 3.4.3 is the floor of Cray MPICH), "
                "or name a newer host MPI with `--mpi PREFIX`",
                check="symbols",
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
            continue  # the host's newer one comes along
        if prefix == "GFORTRAN" and not any("libgfortran.so.5" in e.needed for e in plan.consumers):
            continue  # Fortran's interface of the host, which nothing here uses
        version, who = needs(parts, prefix)
        if prefix == "GLIBC" and plan.glibc and plan.glibc.pieces:
            yield from _other_glibc(plan, plan.glibc)
            bad = True
            continue
        if version and not have:
            bad = True
            yield error(
                f"the host's {plan.host.library.title} needs {name}, which the image does not have",
                where=who,
                why=f"it needs {prefix}_{version}; no {name} was found in the image "
                f"({plan.facts.os or 'of an unknown distribution'}), which may be built on another",
                remedy="use an image of a distribution with the GNU libraries, or run on the image's "
                "own MPI with `--mpi container`",
                check="glibc",
            )
        elif version and version_key(version) > version_key(have):
            bad = True
            yield error(
                f"the host's {plan.host.library.title} needs a newer {name} than the image has",
                where=who,
                why=f"it needs {prefix}_{version}; the image ({plan.facts.os}) has {prefix}_{have}",
                remedy="build the image on a newer distribution (`suite` in its recipe.toml), or name "
                "a host MPI with lower needs with `--mpi PREFIX`",
                check="glibc",
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
            f"the host's glibc {version} cannot take the place of the image's {plan.facts.glibc}",
            where=plan.image,
            why=f"{glibc.by} needs GLIBC_{glibc.need}, and the host's libraries need "
            f"{', '.join(glibc.lacking)}, for which the image has no file to show it over",
            remedy="build the image on a newer distribution (`suite` in its recipe.toml), or name a "
            "host MPI with lower needs with `--mpi PREFIX`",
            check="glibc",
        )
        return
    yield _ok(
        "glibc",
        f"the host's glibc {version} {how}",
        f"the host's libraries need GLIBC_{glibc.need}, the image has {plan.facts.glibc}",
    )
    if glibc.left:
        yield Finding(
            Severity.WARNING,
            f"{', '.join(glibc.left)} of the image will meet a newer libc",
            plan.image,
            f"the host's glibc {version} has no such piece; a program that loads one may fail",
            "if it does, build the image on a newer distribution",
            "glibc",
        )


def rpath(plan: Plan) -> Iterator[Finding]:
    """DT_RPATH beats LD_LIBRARY_PATH: such a program keeps the image's MPI, with exit code 0."""
    if plan.host is None:
        return
    held = {m.path.rpartition("/")[0] for m in plan.facts.mpis if m.path not in plan.bound}
    bad = False
    for elf in plan.consumers:
        if held.intersection(elf.rpath_folders):
            bad = True
            yield error(
                f"{elf.path} would keep the image's MPI",
                where=f"{elf.path}, DT_RPATH {':'.join(elf.rpath)}",
                why="the loader searches DT_RPATH before LD_LIBRARY_PATH, so the host's MPI would never "
                "be found, and the run would end with exit code 0",
                remedy=f"link it with -Wl,--enable-new-dtags, or `patchelf --set-rpath PATH {elf.path}` "
                "(writes RUNPATH) when the image is built; or run on the image's MPI: --mpi container",
                check="rpath",
            )
    if not bad:
        what = "no program of the image is tied to the image's MPI by DT_RPATH"
        if plan.bound:
            what = (
                f"the host's MPI is shown over {', '.join(plan.bound)}, where programs look first"
            )
        yield _ok("rpath", what)


def static(plan: Plan) -> Iterator[Finding]:
    """A program that contains an MPI cannot be given another."""
    for elf in plan.consumers:
        wraps = "PMPI_Init" in elf.mpi_imports  # a tracer, whatever its name
        if "MPI_Init" in elf.mpi_exports and not (elf.soname or wraps) and plan.host is not None:
            yield error(
                f"{elf.path} contains its own MPI",
                where=elf.path,
                why="it is statically linked: there is no library to replace",
                remedy="link it dynamically when the image is built, or run it with `--mpi container`",
                check="static",
            )


def python_prefix(plan: Plan) -> Iterator[Finding]:
    """mpi4py loads an MPI that sits in its own Python prefix before any other."""
    if plan.host is None:
        return
    for mpi in plan.facts.mpis:
        if mpi.python_prefix and mpi.path not in plan.bound:
            yield error(
                f"{mpi.title} sits inside the Python prefix {mpi.python_prefix}",
                where=mpi.path,
                why="mpi4py looks in sys.prefix/lib before it looks anywhere else, so every rank would "
                "keep this MPI",
                remedy="install it outside every Python prefix (recipe.toml: [mpi] prefix), or run with "
                "`--mpi container`",
                check="python-prefix",
            )


def names(plan: Plan) -> Iterator[Finding]:
    """Every name by which the image asks for its MPI leads to the host's."""
    if plan.staging is None or plan.host is None or plan.host.library.family is not plan.family:
        return
    there = {f.target for f in plan.staging.files} | {link for link, _ in plan.staging.aliases}
    lacking = [n for n in plan.names if f"lib/{n}" not in there]
    for name in lacking:
        users = [e.path for e in plan.consumers if name in e.needed]
        yield error(
            f"nothing in {MOUNT}/lib is called {name}",
            where=", ".join(users[:3]) or plan.image,
            why="the loader would go on to the image's own library of that name: the swap would not "
            "happen, and the run would end with exit code 0",
            remedy=f"an alias {name} -> {plan.host.library.soname} beside the staged library; "
            "`fairlead explain` shows the aliases of a plan",
            check="alias",
        )
    if not lacking:
        yield _ok("alias", f"{', '.join(plan.names)}: each name leads to the host's library")


def closure(plan: Plan) -> Iterator[Finding]:
    """Everything behind the host's MPI was found."""
    if plan.host is None:
        return
    for name, by in plan.host.missing:
        yield error(
            f"the host's MPI needs {name}, which this host does not have",
            where=by,
            why="the loader of this host would not find it either",
            remedy="install the package that holds it, or add its folder to LD_LIBRARY_PATH here",
            check="closure",
        )
    if not plan.host.missing:
        yield _ok(
            "closure", f"all {len(plan.host.closure)} libraries behind the host's MPI were found"
        )


def namespaces(plan: Plan) -> Iterator[Finding]:
    """Ranks of one node must share memory; options that part them make a hang or an abort."""
    parting = ENGINES.get(plan.engine.kind).parting_options if plan.engine.kind in ENGINES else {}
    bad = [o for o in plan.request.engine_args if o in parting]
    for option in bad if plan.request.ranks > 1 else ():
        yield error(
            f"engine option {option} would part the ranks",
            where=f"--engine-arg {option}",
            why=parting[option],
            remedy=f"leave out {option}",
            check="namespaces",
        )
    if bad and plan.request.ranks > 1:
        return
    if plan.engine.userns_per_rank:
        yield Finding(
            Severity.INFO,
            "each rank runs in a user namespace of its own",
            plan.engine.path,
            "cross-memory attach is switched off, which costs bandwidth for large messages within a node",
            "a setuid Apptainer shares one namespace among the ranks",
            "namespaces",
        )
    else:
        yield _ok(
            "namespaces", "the ranks of a node share /dev/shm, PIDs, IPC and the user namespace"
        )


def engine_settings(plan: Plan) -> Iterator[Finding]:
    """What an administrator keeps from containers, and the engine then leaves out."""
    engine = plan.engine
    ask = f"ask an administrator to change it in {engine.config}"
    if engine.forbids_binds and plan.binds:
        yield error(
            "the engine may show nothing of this machine in a container",
            where=f"{engine.config}: {engine.forbids_binds}",
            why="it would leave out "
            + ("the host's MPI and what proves it" if plan.host else "what proves the run")
            + ", start the image without, and end with exit code 0",
            remedy=f"{ask}, or use another --engine",
            check="engine-settings",
        )
    if plan.request.ranks < 2:
        return
    for folder, setting in engine.hides:
        # A bind over what the container has already is left out.
        bound = folder != "/dev/shm" and folder in {bind.target for bind in plan.binds}
        if folder == "/dev/shm" or (_speaks(plan) is AbiFamily.OPENMPI and not bound):
            yield error(
                f"each container would have a {folder} of its own",
                where=f"{engine.config}: {setting}",
                why="ranks of a node meet there: they would wait for each other for ever",
                remedy=ask
                + (", or use another --engine" if folder != "/tmp" else ", or: --bind /tmp"),
                check="engine-settings",
            )


def user_libraries(plan: Plan) -> Iterator[Finding]:
    """A preloaded MPI would be mapped beside the planned one."""
    for word in plan.request.preload.replace(":", " ").split():
        name = word.rsplit("/", 1)[-1]
        if family_of_soname(name) is not AbiFamily.UNKNOWN:
            yield error(
                f"LD_PRELOAD brings an MPI of its own: {word}",
                where="LD_PRELOAD of this shell",
                why="two MPIs in one process corrupt each other",
                remedy="unset LD_PRELOAD",
                check="preload",
            )


def gpu(plan: Plan) -> Iterator[Finding]:
    """GPU support that is asked for needs its transport library, or MPI_Init ends the program."""
    if not plan.request.gpu or plan.host is None:
        return
    found = gpu_transport(plan.host, plan.request)
    if found is None and plan.host.library.vendor == "Cray MPICH":
        yield error(
            f"{plan.host.library.title} has no GPU transport library here",
            where=plan.host.library.path,
            why="MPICH_GPU_SUPPORT_ENABLED=1 is set, and no libmpi_gtl_cuda or libmpi_gtl_hsa was found "
            "beside it or in gtl/lib above it: MPI_Init would say `GTL library is not linked`",
            remedy="load the site's module for its accelerators (craype-accel-…), or unset "
            "MPICH_GPU_SUPPORT_ENABLED",
            check="gpu-transport",
        )
    elif found is not None:
        yield _ok("gpu-transport", "the GPU transport library is preloaded", found.path)


def architecture(plan: Plan) -> Iterator[Finding]:
    """Both sides are for the same processor."""
    if plan.host and plan.facts.arch and plan.host.library.elf.machine != plan.facts.arch:
        yield error(
            f"the image is for {plan.facts.arch}, the host's MPI for {plan.host.library.elf.machine}",
            where=plan.image,
            why="code of one cannot run in the other",
            remedy="use the image built for this processor",
            check="architecture",
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
