"""Binds the host's MPI over the image's own files, so that no way of finding them leads to the image's MPI.

A search path alone is not enough. DT_RPATH takes precedence over LD_LIBRARY_PATH; setuid and setgid
programs and those with file capabilities ignore it (ld.so(8)); mpi4py searches its Python prefix first; Julia and
ctypes open an absolute path; a script may put other folders first. The bound file is the staged one,
which the loader knows by device and inode: found by several paths, it is mapped once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairlead.elf.mpi_symbols import is_core
from fairlead.engines.registry import ENGINES
from fairlead.swap.model import Bind, Line, Plan
from fairlead.swap.remedies.model import Changes, Draft, RankReport, Remedy


class OverImage(Remedy):
    name = "over-image"
    title = "shows the host's MPI over the image's own files, which programs may find before any search path"

    def applies(self, draft: Draft) -> bool:
        inputs = draft.inputs
        return bool(inputs.swapped_in and inputs.engine.binds_files and inputs.facts.mpis)

    def change(self, draft: Draft) -> Changes:
        host = draft.inputs.swapped_in
        assert host is not None
        kind = draft.inputs.engine.kind
        unfit = ENGINES.get(kind).bind_limit[0] if kind in ENGINES else ""
        binds, lines = [], []
        for name, path, why in (*_mpis(draft), *_bindings(draft)):
            if unfit and re.search(unfit, path):
                continue  # the search path still leads to the host's; the checks find where it does not
            source = str(draft.folder / "lib" / name)
            binds.append(Bind(source, path, read_only=True))
            lines.append(Line("bind", f"{source} -> {path} (read-only)", why, path))
        return Changes(tuple(binds), lines=tuple(lines), bound=tuple(b.target for b in binds))

    def explain_failure(self, plan: Plan, rank: RankReport) -> tuple[str, str] | None:
        tied = [elf for elf in plan.consumers if elf.rpath_folders]
        if tied:
            return (
                f"{tied[0].path} has DT_RPATH {':'.join(tied[0].rpath)}, which the loader searches first",
                "link it with -Wl,--enable-new-dtags when the image is built",
            )
        inside = [mpi for mpi in plan.facts.mpis if mpi.python_prefix]
        if inside:
            return (
                f"{inside[0].path} is in a Python prefix, where mpi4py looks first",
                "install the image's MPI outside every Python prefix",
            )
        return None


REMEDY = OverImage()


def _mpis(draft: Draft) -> Iterator[tuple[str, str, str]]:
    """The image's MPIs of the host's family: what is shown over each, where, and why."""
    host = draft.inputs.swapped_in
    assert host is not None
    asked = {folder for elf in draft.consumers for folder in elf.rpath_folders}
    for mpi in draft.inputs.facts.mpis:
        if mpi.family is not host.library.family:
            continue
        why = "a program that opens this path, or finds it before the search path, gets the host's"
        if mpi.python_prefix:
            why = f"mpi4py looks into its Python prefix, {mpi.python_prefix}, first"
        elif mpi.path.rpartition("/")[0] in asked:
            why = "a program's DT_RPATH leads there, before any search path"
        yield host.library.soname, mpi.path, why


def _bindings(draft: Draft) -> Iterator[tuple[str, str, str]]:
    """The image's interfaces for other languages that the host's MPI has too: as :func:`_mpis`."""
    host, staging = draft.inputs.swapped_in, draft.staging
    assert host is not None and staging is not None
    real = {link.rpartition("/")[2]: target for link, target in staging.aliases}
    there = {f"lib/{elf.name}" for elf in host.companions} & {f.target for f in staging.files}
    there |= {f.target for f in staging.files if is_core(f.target.rpartition("/")[2])}
    facts = draft.inputs.facts
    own = {path: name for needed in facts.parts.values() for name, path in needed.items()}
    for path, soname in {**own, **{e.path: e.soname for e in facts.consumers}}.items():
        name = real.get(soname, soname)
        if f"lib/{name}" in there:
            yield name, path, "it belongs to the MPI that is replaced"
