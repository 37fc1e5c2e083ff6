"""Are the images' C libraries new enough for this host's MPIs, and what is done where they are not?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.world import World
from fairlead.elf.facts import AbiFamily, ImageFacts
from fairlead.elf.reader import version_key
from fairlead.engines.model import Engine
from fairlead.mpi.host import HostMpi
from fairlead.swap.glibc import Glibc, GlibcWay, choose_glibc, host_glibc

# What Debian's package libc6 brings; another distribution's images are looked at by `preflight`.
_PIECES = (
    "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libmvec.so.1",
    "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2", "libutil.so.1", "libanl.so.1",
    "libnsl.so.1", "libnss_compat.so.2", "libnss_dns.so.2", "libnss_files.so.2",
    "libnss_hesiod.so.2", "libthread_db.so.1", "libBrokenLocale.so.1", "libc_malloc_debug.so.0",
    "libmemusage.so", "libpcprofile.so",
)  # fmt: skip


def examine(world: World) -> Iterator[Diagnosis]:
    images = world.image_glibcs()
    mpis = [m for m in world.host_mpis() if m.library.family is not AbiFamily.UNKNOWN]
    if not mpis or not images:
        lacks = "host MPI" if not mpis else "lock of an image"
        yield well(f"there is no {lacks} to compare")
        return
    oldest = min(images.values(), key=version_key)
    newest = max(images.values(), key=version_key)
    engine = world.engine_here() or Engine("apptainer", "", False, (), ())
    problems = [d for mpi in _distinct(mpis) if (d := _distance(mpi, images, engine)) is not None]
    yield from problems
    if not problems:
        first = mpis[0]
        need = choose_glibc(first, _facts(oldest), engine).need or "no version"
        reach = oldest if oldest == newest else f"{oldest} to {newest}"
        yield well(
            f"host MPIs need glibc {_highest(mpis, engine, oldest)}, images have {reach}",
            f"host {host_glibc(first) or 'unknown'}; {first.library.title} needs {need}",
        )


def _distinct(mpis: list[HostMpi]) -> list[HostMpi]:
    """One of each library's folder: two interfaces of one MPI have the same behind them."""
    return list({m.prefix: m for m in reversed(mpis)}.values())[::-1]


def _highest(mpis: list[HostMpi], engine: Engine, glibc: str) -> str:
    needed = [choose_glibc(mpi, _facts(glibc), engine).need for mpi in mpis]
    return max(needed, key=version_key) or "no version"


def _distance(mpi: HostMpi, images: Mapping[str, str], engine: Engine) -> Diagnosis | None:
    ways: dict[str, Glibc] = {
        name: choose_glibc(mpi, _facts(glibc), engine) for name, glibc in images.items()
    }
    far = {name: way for name, way in ways.items() if way.way is not GlibcWay.IMAGE}
    if not far:
        return None
    worst = next((w for w in far.values() if w.way is GlibcWay.NONE), next(iter(far.values())))
    names = ", ".join(f"{name} {images[name]}" for name in list(far)[:4])
    fields: dict[str, Any] = {
        "mpi": mpi,
        "worst": worst,
        "far_count": len(far),
        "images_count": len(images),
        "names": names + (", ..." if len(far) > 4 else ""),
        "host_glibc": host_glibc(mpi),
    }
    if worst.way is GlibcWay.NONE:
        return ill("glibc-distance-too-old", **fields)
    if worst.way is GlibcWay.BIND:
        return note("glibc-distance-bound-over", **fields)
    return note("glibc-distance-used-through-loader", **fields)


def _facts(glibc: str) -> ImageFacts:
    """As much of an image as the choice depends on."""
    return ImageFacts(
        arch="",
        glibc=glibc,
        libstdcxx="",
        os="",
        python="",
        mpis=(),
        consumers=(),
        glibc_files={name: f"/lib/{name}" for name in _PIECES},
    )


CHECK = Check("glibc-distance", "glibc of host MPIs and of images", examine, Topic.MPI, order=20)
