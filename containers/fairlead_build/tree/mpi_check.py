"""Does the image hang together? Every MPI symbol imported in it is exported by its own MPI.

The image's MPI is the old end of its ABI, so what runs here runs on every newer host MPI of the
family (DESIGN: the planner then checks the host's library against the same imports).
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error
from fairlead.elf.facts import AbiFamily, Elf, ImageFacts, MpiLibrary
from fairlead.elf.mpi_standard import edition_of
from fairlead.elf.mpi_symbols import family_of_soname
from fairlead.elf.reader import version_key
from fairlead_build.recipe.load import LoadedRecipe


def image_findings(facts: ImageFacts, loaded: LoadedRecipe) -> list[Finding]:
    """What is wrong with an image's own libraries; empty when it may be built."""
    return [
        *_libc(facts, loaded),
        *_mpi(facts, loaded),
        *_symbols(facts, loaded),
        *_floor(facts, loaded),
    ]


def _libc(facts: ImageFacts, loaded: LoadedRecipe) -> Iterator[Finding]:
    if version_key(facts.glibc_floor) > version_key(facts.glibc):
        yield error(
            "image-glibc",
            glibc_floor=facts.glibc_floor,
            glibc=facts.glibc,
            folder=loaded.folder / "recipe.toml",
            given=loaded.given,
        )


def _mpi(facts: ImageFacts, loaded: LoadedRecipe) -> Iterator[Finding]:
    mpi = loaded.recipe.mpi
    if mpi is None:
        return
    own = [m for m in facts.mpis if m.family.value == mpi.family]
    if not own:
        titles = ", ".join(m.title for m in facts.mpis) or "none"
        yield error(
            "image-mpi-no-library",
            family=mpi.family,
            folder=loaded.folder / "recipe.toml",
            titles=titles,
            given=loaded.given,
        )
    for library in facts.mpis:
        if library.python_prefix:
            yield error(
                "mpi-in-python-lies-inside-prefix",
                library_title=library.title,
                library_path=library.path,
                given=loaded.given,
            )


def _symbols(facts: ImageFacts, loaded: LoadedRecipe) -> Iterator[Finding]:
    for consumer in facts.consumers:
        providers = [m for m in facts.mpis if m.family == _family(consumer)]
        if not providers:
            continue  # e.g. mpi4py's module for a family that this image does not have
        lacking = min((_lacking(consumer, m) for m in providers), key=len)
        if lacking:
            yield error(
                "image-mpi-symbols",
                consumer_path=consumer.path,
                providers_path=providers[0].path,
                providers_title=providers[0].title,
                lacking=", ".join(lacking[:5]),
                why=f" and {len(lacking) - 5} more" if len(lacking) > 5 else "",
                given=loaded.given,
            )


def _floor(facts: ImageFacts, loaded: LoadedRecipe) -> Iterator[Finding]:
    """Functions of a newer MPI standard than the recipe promises to need."""
    mpi = loaded.recipe.mpi
    if mpi is None or mpi.floor is None:
        return
    for consumer in facts.consumers:
        if _family(consumer).value != mpi.family:
            continue
        editions = {name: edition_of(name) for name in consumer.mpi_imports}
        above = {n: e for n, e in editions.items() if version_key(e) > version_key(mpi.floor)}
        if above:
            shown = [f"{name} (MPI {above[name]})" for name in sorted(above)]
            yield error(
                "image-mpi-floor",
                consumer_path=consumer.path,
                floor=mpi.floor,
                folder=loaded.folder / "recipe.toml",
                shown=", ".join(shown[:5]),
                why=f" and {len(shown) - 5} more" if len(shown) > 5 else "",
                given=loaded.given,
            )


def _family(consumer: Elf) -> AbiFamily:
    families = [f for f in map(family_of_soname, consumer.needed) if f is not AbiFamily.UNKNOWN]
    return families[0] if families else AbiFamily.UNKNOWN


def _lacking(consumer: Elf, library: MpiLibrary) -> list[str]:
    return sorted(set(consumer.mpi_imports) - set(library.elf.mpi_exports))
