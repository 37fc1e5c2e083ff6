"""Does the image hang together? Every MPI symbol imported in it is exported by its own MPI.

The image's MPI is the old end of its ABI, so what runs here runs on every newer host MPI of the
family (DESIGN: the planner then checks the host's library against the same imports).
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error
from fairlead.elf.facts import AbiFamily, Elf, ImageFacts
from fairlead.elf.mpi_standard import edition_of
from fairlead.elf.mpi_symbols import called, family_of_soname
from fairlead.elf.reader import version_key
from fairlead_build.recipe.load import LoadedRecipe


def image_findings(facts: ImageFacts, loaded: LoadedRecipe) -> list[Finding]:
    """What is wrong with an image's own libraries; empty when it may be built."""
    wrong = [*_mpi(facts, loaded), *_symbols(facts, loaded), *_floor(facts, loaded)]
    if version_key(facts.glibc_floor) > version_key(facts.glibc):
        wrong.insert(0, error("image-glibc", facts=facts, loaded=loaded))
    return wrong


def _mpi(facts: ImageFacts, loaded: LoadedRecipe) -> Iterator[Finding]:
    mpi = loaded.recipe.mpi
    if mpi is None:
        return
    if not any(m.family.value == mpi.family for m in facts.mpis):
        titles = ", ".join(m.title for m in facts.mpis) or "none"
        yield error("image-mpi-no-library", mpi=mpi, titles=titles, loaded=loaded)
    for library in facts.mpis:
        if library.python_prefix:
            yield error("mpi-in-python-lies-inside-prefix", library=library, loaded=loaded)


def _symbols(facts: ImageFacts, loaded: LoadedRecipe) -> Iterator[Finding]:
    for consumer in facts.consumers:
        providers = [m for m in facts.mpis if m.family == _family(consumer)]
        if not providers:
            continue  # e.g. mpi4py's module for a family that this image does not have
        wanted = set(called(consumer, ()))  # Fortran's come from an interface
        lacking = min((sorted(wanted - set(m.elf.mpi_exports)) for m in providers), key=len)
        if lacking:
            given = {"provider": providers[0], "lacking": _some(lacking), "loaded": loaded}
            yield error("image-mpi-symbols", consumer=consumer, **given)


def _floor(facts: ImageFacts, loaded: LoadedRecipe) -> Iterator[Finding]:
    """Functions of a newer MPI standard than the recipe promises to need."""
    mpi = loaded.recipe.mpi
    if mpi is None or mpi.floor is None:
        return
    for consumer in facts.consumers:
        editions = {name: edition_of(name) for name in consumer.mpi_imports}
        above = [n for n, e in editions.items() if version_key(e) > version_key(mpi.floor)]
        if above and _family(consumer).value == mpi.family:
            shown = _some([f"{name} (MPI {editions[name]})" for name in sorted(above)])
            yield error("image-mpi-floor", consumer=consumer, mpi=mpi, shown=shown, loaded=loaded)


def _some(words: list[str]) -> str:
    more = f" and {len(words) - 5} more" if len(words) > 5 else ""
    return ", ".join(words[:5]) + more


def _family(consumer: Elf) -> AbiFamily:
    families = [f for f in map(family_of_soname, consumer.needed) if f is not AbiFamily.UNKNOWN]
    return families[0] if families else AbiFamily.UNKNOWN
