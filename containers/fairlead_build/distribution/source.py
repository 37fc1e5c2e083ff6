"""What IMAGE stands for when it is pushed: its OCI layout, its SIF, or both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.progress import Progress
from fairlead.image.open import find
from fairlead.image.sif import is_sif, read_sif
from fairlead_build.base.digest import sha256_of
from fairlead_build.cache.store import Cache, holding, need_space, workspace
from fairlead_build.formats import oci, store
from fairlead_build.formats.images import read_entry
from fairlead_build.formats.wrapping import wrapping_of
from fairlead_build.registry.layout import is_layout


@dataclass(frozen=True)
class Source:
    """An image on this machine; ``layout`` and ``sif`` hold the same tree."""

    layout: Path | None
    sif: Path | None


@contextmanager
def source_of(image: str, layers: bool, cache: Cache, progress: Progress) -> Iterator[Source]:
    """What there is to push of IMAGE.

    Args:
        layers: whether the OCI layout is wanted too.
    Raises:
        FairleadError: there is no such image, or it cannot be pushed.
    """
    if is_layout(Path(image)):
        yield Source(Path(image), None)
        return
    entry = read_entry(cache, image)
    path = Path(entry.path) if entry else find(image)
    if path.is_dir() or not is_sif(path):
        raise fail("push-format-cannot-pushed", image=image, path=path)
    if not layers:
        yield Source(None, path)
        return
    if read_sif(path).document("image.json") is None:
        raise fail("push-format-no-layers", image=image, path=path)
    if entry:
        with holding(cache, f"recipe-{entry.recipe}", progress, f"is building `{image}` too"):
            layout = store.make(oci.FORMAT, entry, cache, progress)
        yield Source(layout, path)
        return
    size = path.stat().st_size
    need_space(cache.root, 2 * size, "the layers", "XDG_CACHE_HOME")
    with workspace(cache.root / "work", "layers-") as work:
        digest = sha256_of(path)
        layout = work / "image.oci"
        layout.mkdir()
        with progress.stage("write the OCI layers", unit="B") as stage:
            oci.write_layout(layout, path, wrapping_of(path, digest), stage.advance)
        yield Source(layout, path)
