"""Why a library of the host is not in a plan, or why it is: ``fairlead explain --why-not``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from fairlead.base.suggest import suggest
from fairlead.elf.facts import Elf
from fairlead.elf.mpi_symbols import GLIBC_PIECES, RUNTIME_PIECES
from fairlead.swap.model import CARRIED_MOUNT, MOUNT, NCCL_MOUNT, Line, Plan


def why_not(plan: Plan, name: str) -> tuple[Line, ...]:
    """Explains what the plan does with the library ``name``: a SONAME, a file name, or a path of the host.

    Returns:
        One line for each reason, at least one; of kind ``staged`` if the plan includes the library.
    """
    wanted = PurePosixPath(name).name
    stem = re.sub(r"\.so(\.\d+)*$", "", wanted)
    lines = (
        *_staged(plan, wanted, stem),
        *_of_carried(plan, wanted, stem),
        *_of_network(plan, wanted, stem),
        *_left_out(plan, wanted, stem),
        *_of_image(plan, wanted, stem),
    )
    if lines:
        return lines
    if GLIBC_PIECES.match(wanted) or GLIBC_PIECES.match(f"{stem}.so"):
        why = (
            f"it is a piece of glibc: the image's own ({plan.facts.glibc or 'none'}) stays, since one "
            "piece of another glibc on the search path breaks every program that is started"
        )
        return (Line("left out", wanted, why),)
    if plan.staging is None:
        why = "nothing of the host is staged: the image's own MPI runs (--mpi container)"
        return (Line("left out", wanted, why),)
    known = sorted({PurePosixPath(f.target).name for f in plan.staging.files})
    title = plan.host.library.title if plan.host else "the MPI"
    why = f"nothing behind the host's {title} needs it or opens it. {suggest(wanted, known)}"
    return (Line("left out", wanted, why),)


def _is(name: str, wanted: str, stem: str) -> bool:
    """Whether ``wanted`` names a file: exactly, or without its version."""
    return name == wanted or (wanted in (stem, f"{stem}.so") and name.startswith(f"{stem}.so"))


def _of_carried(plan: Plan, wanted: str, stem: str) -> Iterator[Line]:
    """What is staged below the image's own MPI."""
    for file in plan.carried_staging.files if plan.carried_staging else ():
        name = PurePosixPath(file.target).name
        if _is(name, wanted, stem) or PurePosixPath(file.source).name == wanted:
            why = "it is carried below the image's own MPI, or needed by what is"
            yield Line("staged", f"{CARRIED_MOUNT}/{file.target}", why, file.source)


def _of_network(plan: Plan, wanted: str, stem: str) -> Iterator[Line]:
    """What is staged for NCCL's network plugin."""
    if plan.nccl is None or plan.nccl_staging is None:
        return
    title = plan.nccl.host.plugin.title
    for file in plan.nccl_staging.files:
        name = PurePosixPath(file.target).name
        if _is(name, wanted, stem) or PurePosixPath(file.source).name == wanted:
            own = file.source == plan.nccl.host.plugin.path
            why = "it is NCCL's network plugin" if own else f"needed by {title}, NCCL's plugin"
            yield Line("staged", f"{NCCL_MOUNT}/{file.target}", why, file.source)
    for stub in plan.nccl_staging.stubs:
        if _is(PurePosixPath(stub.target).name, wanted, stem):
            why = f"{title} opens this name; it leads to {stub.needed} of engine or image"
            yield Line("alias", f"{NCCL_MOUNT}/{stub.target}", why)


def _staged(plan: Plan, wanted: str, stem: str) -> Iterator[Line]:
    if plan.staging is None or plan.host is None:
        return
    needed_by = _needed_by(plan.host.parts)
    for file in plan.staging.files:
        name = PurePosixPath(file.target).name
        if _is(name, wanted, stem) or PurePosixPath(file.source).name == wanted:
            who = needed_by.get(name, ())
            why = f"needed by {', '.join(who)}" if who else "it is the host's MPI, or opened by it"
            yield Line("staged", f"{MOUNT}/{file.target}", why, file.source)
    for link, target in plan.staging.aliases:
        if PurePosixPath(link).name == wanted:
            why = f"it is a name of {target}, so that programs that ask for it get the host's"
            yield Line("staged", f"{MOUNT}/{link}", why)


def _needed_by(parts: tuple[Elf, ...]) -> dict[str, tuple[str, ...]]:
    users: dict[str, tuple[str, ...]] = {}
    for elf in parts:
        for name in elf.needed:
            users[name] = (*users.get(name, ()), elf.name)
    return users


def _left_out(plan: Plan, wanted: str, stem: str) -> Iterator[Line]:
    for line in plan.lines:
        if line.kind == "left out" and (
            _is(line.what, wanted, stem) or _is(PurePosixPath(line.fact).name, wanted, stem)
        ):
            yield line
    missing = plan.host.missing if plan.host else ()
    for name, by in missing:
        if _is(name, wanted, stem) and name not in RUNTIME_PIECES:
            yield Line("left out", name, "the host's own loader does not find it either", by)


def _of_image(plan: Plan, wanted: str, stem: str) -> Iterator[Line]:
    if plan.staging is None:
        return
    for mpi in plan.facts.mpis:
        names = {mpi.soname, PurePosixPath(mpi.path).name, *mpi.names}
        if any(_is(name, wanted, stem) for name in names):
            same = mpi.family is (plan.host.library.family if plan.host else None)
            why = "it stays in the image, unused: the host's takes its names"
            if not same:
                why = f"it stays in the image: it is of another family ({mpi.family})"
            yield Line("left out", f"{mpi.title} of the image", why, mpi.path)
