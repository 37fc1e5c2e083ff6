"""Brings what a lock names into the store: from the archive, else each thing from its index.

``fetch_debs.py`` and ``fetch_wheels.py`` ask apt and pip, because these know this machine's mirrors,
proxies, certificates and passwords; source archives come here. What any of them brings is believed
only after its hash was checked.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.base.progress import Progress
from fairlead_build.cache.store import Cache, adopt, missing, need_space
from fairlead_build.recipe.load import LoadedRecipe
from fairlead_build.recipe.lock import Lock, SourceArchive
from fairlead_build.resolve import archive
from fairlead_build.resolve.fetch_debs import fetch_debs
from fairlead_build.resolve.fetch_wheels import Wanted, fetch_wheels
from fairlead_build.resolve.pip import PYPI, settings, target_of
from fairlead_build.resolve.sources import Place, download, source_archive


def fetch(loaded: LoadedRecipe, lock: Lock, cache: Cache, progress: Progress) -> None:
    """Completes the store for ``lock``.

    Raises:
        FairleadError: a file has vanished from its index, has another hash, or there is no room.
    """
    absent = missing(lock.packages, cache)
    if not absent:
        return
    need = sum(p.size for p in absent)
    need_space(cache.root, need + (16 << 20), "the downloads", "XDG_CACHE_HOME")
    archive.bring(map(archive.Kept.of, absent), cache, progress)
    fetch_debs(
        (*lock.deb, *lock.build_deb), cache, progress, f"fairlead recipe lock {loaded.given}"
    )
    if wheels := missing(lock.wheel, cache):
        target = target_of(lock.inputs.python, lock.architecture, lock.glibc)
        wanted = [Wanted.of(wheel) for wheel in wheels]
        fetch_wheels(wanted, target, cache, progress, loaded.given)
    if sources := missing(lock.source, cache):
        fetch_sources(sources, loaded, cache, progress)


def fetch_sources(
    sources: Sequence[SourceArchive], loaded: LoadedRecipe, cache: Cache, progress: Progress
) -> None:
    """Downloads source archives: from their index, or from the address that the recipe names."""
    remedy = f"fairlead recipe lock {loaded.given}"
    urls = {s.source.name: s.source.url or "" for s in loaded.sources}
    pip = settings()
    with progress.stage("download sources", sum(s.size for s in sources), "B") as stage:
        for source in sources:
            stage.note(source.file)
            if source.index == PYPI:
                place = source_archive(source.name, source.version, pip, remedy).place
            else:
                place = Place(urls[source.name], pip.certificates)
            partial = cache.partial(source.sha256)
            download(place, partial, stage.advance)
            adopt(cache, partial, source.sha256, source.size, f"source {source.name}", remedy)
        stage.result(f"{len(sources)} archives")
