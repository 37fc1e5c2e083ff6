"""The bundled recipes as one page: what is in each, how large it is, the digests a build must give.

Contents and download sizes are read from the locks. Sizes of images and digests are those of the
last real build, kept in a JSON file next to the page, which holds for a lock only as long as its
packages stay. ``make catalogue`` builds every recipe that has a lock, and writes both files; ``python -m
tools.catalogue NAME…`` builds those, and leaves the figures of the others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from fairlead.base.paths import atomic_write, bundled
from fairlead.base.progress import Progress
from fairlead.image.packages import frameworks
from fairlead_build.base.digest import sha256_of
from fairlead_build.build import build
from fairlead_build.cache.store import Cache
from fairlead_build.recipe.inherit import bundled_names
from fairlead_build.recipe.load import LoadedRecipe, addresses, load_recipe
from fairlead_build.recipe.lock import Lock, load_lock, why_unlocked
from fairlead_build.squashfs.tree_stream import tree_digest
from fairlead_build.tree.wheel import requirements_in

PAGE = "catalogue.md"
FIGURES = "catalogue.json"


@dataclass(frozen=True)
class Figures:
    """What the last build of a recipe gave.

    Attributes:
        lock_sha256: of the lock file it was built from.
        sif_bytes: of the SIF.
        squashfs_sha256: of the image's tree before fairlead's own wheel is laid over it.
        tree_sha256: of the same tree, whatever it is wrapped in.
    """

    lock_sha256: str
    sif_bytes: int
    squashfs_sha256: str
    tree_sha256: str


def every() -> list[str]:
    """Each bundled recipe and variant."""
    return [address for name in bundled_names() for address in addresses(name)]


def measure(recipe: str, cache: Cache, progress: Progress) -> Figures:
    """Builds a recipe, or finds it built, and looks at what came of it.

    Raises:
        FairleadError: it cannot be built.
    """
    entry = build(recipe, cache=cache, progress=progress).entry
    assert entry is not None
    tree = cache.tree(entry.tree)
    return Figures(entry.lock_sha256, entry.bytes, sha256_of(tree), tree_digest(tree))


def read_figures(path: Path) -> dict[str, Figures]:
    """What is kept of the last builds, by recipe; empty when nothing is."""
    if not path.is_file():
        return {}
    data = json.loads(path.read_text("utf-8"))
    return {name: Figures(**row) for name, row in data["recipes"].items()}


def write_figures(path: Path, figures: Mapping[str, Figures]) -> None:
    """Keeps them, in the order of their names."""
    rows = {name: asdict(row) for name, row in sorted(figures.items())}
    document = {"schema": "fairlead/catalogue", "version": 1, "recipes": rows}
    with atomic_write(path, "w") as out:
        out.write(json.dumps(document, indent=1) + "\n")


def page(figures: Mapping[str, Figures]) -> str:
    """The page, in Markdown."""
    contents, digests, unlocked = [], [], []
    for address in every():
        loaded = load_recipe(address)
        if not loaded.lock_path.is_file():
            unlocked.append(
                f"| `{address}` | {loaded.recipe.recipe.summary} | {why_unlocked(loaded)} |"
            )
            continue
        lock, digest = load_lock(loaded, requirements_in(loaded.recipe))
        built = figures.get(address)
        if built is None or built.lock_sha256 != digest:
            built = None
        size = f"{built.sif_bytes / 1e6:.0f} MB" if built else "not built since it was locked"
        python = loaded.recipe.python.version if loaded.recipe.python else ""
        contents.append(
            f"| `{address}` | {_mpi(loaded, lock)} | {python} | {_frameworks(lock)} "
            f"| {lock.download_bytes / 1e6:.0f} MB | {size} |"
        )
        if built:
            digests.append(f"| `{address}` | `{built.squashfs_sha256}` | `{built.tree_sha256}` |")
    return _PAGE.format(
        contents="\n".join(contents), digests="\n".join(digests), unlocked="\n".join(unlocked)
    )


def _mpi(loaded: LoadedRecipe, lock: Lock) -> str:
    mpi = loaded.recipe.mpi
    if mpi is None:
        return "none"
    title = {"mpich": "MPICH", "openmpi": "Open MPI"}[mpi.family]
    version = next((d.version for d in lock.deb if d.name == mpi.distribution), mpi.version or "")
    return f"{title} {version.split('-')[0]}"


def _frameworks(lock: Lock) -> str:
    packages = {w.name: w.version for w in lock.wheel if w.role == "python"}
    packages |= {source.name: source.version for source in lock.source}
    return ", ".join(f"{name} {version}" for name, version in frameworks(packages).items())


_PAGE = """\
# The bundled recipes

<!-- Made by `make catalogue` from the locks and from real builds; do not edit. -->

[The catalogue](../howto/catalogue.md) says which one is for whom. All are for amd64, and all images have
fairlead's own runtime. The download is what a first build fetches, compilers included; 1 MB is
10^6 bytes.

| recipe | MPI | Python | frameworks | download | SIF |
| --- | --- | --- | --- | --- | --- |
{contents}

## Digests

What a build of these locks must give, on any machine: the squashfs of the image's tree, and the
digest of that tree, both without fairlead's own wheel, which changes with every commit.

| recipe | squashfs sha256 | tree sha256 |
| --- | --- | --- |
{digests}

## Without a lock

These were never built here.

| recipe | what it is | why it has no lock |
| --- | --- | --- |
{unlocked}
"""


def main() -> None:
    """Builds every recipe that has a lock, and writes the page and its figures in a checkout."""
    from fairlead.cli.screen import progress

    folder = bundled("recipes").parent / "docs" / "reference"
    if not folder.is_dir():
        sys.exit(f"no checkout: there is no folder {folder}")
    wanted = sys.argv[1:]
    figures = read_figures(folder / FIGURES) if wanted else {}
    for address in wanted or every():
        if load_recipe(address).lock_path.is_file():
            print(f"{address}:", file=sys.stderr)
            figures[address] = measure(address, Cache.default(), progress())
    write_figures(folder / FIGURES, figures)
    with atomic_write(folder / PAGE, "w") as out:
        out.write(page(figures))


if __name__ == "__main__":
    main()
