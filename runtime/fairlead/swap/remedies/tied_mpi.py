"""For programs that find the image's MPI before any search path: binds the host's over the image's file.

A DT_RPATH takes precedence over LD_LIBRARY_PATH (ld.so(8)), and mpi4py searches its Python prefix first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from fairlead.elf.facts import Elf, ImageFacts, MpiLibrary
from fairlead.swap.model import Bind, Line, Plan
from fairlead.swap.remedies.model import Changes, Draft, RankReport, Remedy


class TiedMpi(Remedy):
    name = "tied-mpi"
    title = "shows the host's MPI over the image's, where DT_RPATH or a Python prefix leads"

    def applies(self, draft: Draft) -> bool:
        inputs = draft.inputs
        return bool(inputs.swapped_in and inputs.engine.binds_files and self._files(draft))

    def change(self, draft: Draft) -> Changes:
        host = draft.inputs.swapped_in
        assert host is not None
        source = str(draft.folder / "lib" / host.library.soname)
        binds, lines = [], []
        for mpi in self._files(draft):
            why = "a program's DT_RPATH leads there, before any search path"
            if mpi.python_prefix:
                why = f"mpi4py looks into its Python prefix, {mpi.python_prefix}, first"
            binds.append(Bind(source, mpi.path, read_only=True))
            lines.append(Line("bind", f"{source} -> {mpi.path} (read-only)", why, mpi.path))
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

    @staticmethod
    def _files(draft: Draft) -> tuple[MpiLibrary, ...]:
        host = draft.inputs.swapped_in
        tied = tied_to(draft.inputs.facts, draft.consumers)
        return tuple(mpi for mpi in tied if host and mpi.family is host.library.family)


REMEDY = TiedMpi()


def tied_to(facts: ImageFacts, consumers: Sequence[Elf]) -> tuple[MpiLibrary, ...]:
    """The image's MPIs that the search path cannot replace: by DT_RPATH, or in a Python prefix."""
    asked = {folder for elf in consumers for folder in elf.rpath_folders}
    return tuple(
        m for m in facts.mpis if m.python_prefix or str(PurePosixPath(m.path).parent) in asked
    )
