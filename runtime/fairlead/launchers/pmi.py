"""PMI: the interface by which ranks find each other, and which families each flavour connects."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.elf.facts import AbiFamily

# What a site profile calls a way to find each other, in Slurm's words.
_SLURMS = {"cray": "cray_shasta", "pmi2": "pmi2", "pmix": "pmix"}
# Ways that connect a family. PMI-1 comes with PMI-2 in Slurm; MPICH's and Intel's wheels have no PMIx.
_CONNECTS = {AbiFamily.MPICH: ("pmi2", "cray_shasta"), AbiFamily.OPENMPI: ("pmix",)}


def slurm_pmi(speaks: AbiFamily, offered: Sequence[str], preferred: tuple[str, ...] = ()) -> str:
    """The word for ``srun --mpi`` that connects ranks of a family; empty where none is offered.

    Args:
        offered: what ``srun --mpi=list`` names.
        preferred: the site's order, in a profile's words.
    """
    able = _CONNECTS.get(speaks, ())
    wanted = [_SLURMS[p] for p in preferred if p in _SLURMS and _SLURMS[p] in able]
    # Debian's Slurm offers Cray's way on every machine, so it is taken only where a profile says so.
    wanted += [way for way in able if way != "cray_shasta"]
    if preferred[:1] == ("cray",) and "cray_shasta" in able and "cray_shasta" not in offered:
        return ""  # Cray's own of before Slingshot is Slurm's default there, and has no name
    versions = [way for way in offered if way.partition("_v")[0] in wanted]
    return next((way for way in (*wanted, *versions) if way in offered), "")


def connects(pmi: str, speaks: AbiFamily) -> AbiFamily:
    """The family whose ranks a way connects: ``speaks`` where it may be that, else another."""
    way = pmi.partition("_v")[0]
    if way in _CONNECTS.get(speaks, ()):
        return speaks
    for family, ways in _CONNECTS.items():
        if way in ways:
            return family
    return AbiFamily.UNKNOWN


def pmi_named(words: Sequence[str]) -> str:
    """What the user's own words for srun say of PMI, the last of them; empty when nothing.

    >>> pmi_named(("--mpi=pmi2", "-v", "--mpi", "none"))
    'none'
    """
    value = ""
    for position, word in enumerate(words):
        if word.startswith("--mpi="):
            value = word.partition("=")[2]
        elif word == "--mpi" and position + 1 < len(words):
            value = words[position + 1]
    return value
