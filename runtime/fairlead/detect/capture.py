"""A machine as a file: the facts that a plan for it needs, to be used on another machine.

``fairlead site capture`` writes it there; ``fairlead preflight IMAGE --site FILE.json`` and
``fairlead explain`` read it anywhere. It holds names, versions, symbols and paths of the machine's
MPIs and of all that they need, its site profile, how its engine behaves, and what detection saw of it; no
program or library.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead import __version__
from fairlead import site as sites
from fairlead.base import bounded_json
from fairlead.base.errors import FairleadError, fail, os_error_as
from fairlead.base.paths import atomic_write
from fairlead.base.serde import from_json, to_json
from fairlead.detect.model import SiteFacts
from fairlead.engines import registry as engines
from fairlead.engines.model import Engine
from fairlead.mpi import host
from fairlead.mpi.host import HostMpi
from fairlead.nccl.model import HostNccl
from fairlead.site import Site
from fairlead.site.resolved_paths import NOTHING, Here, look

# 2: all facts of detection instead of a few lines of evidence.
SCHEMA, VERSION = "fairlead/site-capture", 2
SUFFIX = ".json"
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Capture:
    """What was seen of a machine.

    Attributes:
        node: its name.
        taken: UTC, as ``2026-01-31T12:00:00Z``.
        fairlead: the version that looked.
        reason: why it is ``site``.
        engine: None when it has none.
        mpis: the preferred first, as :func:`fairlead.mpi.host.discover` orders them.
        here: what of the profile's paths is there.
        facts: what detection saw of it.
        nccl: its network plugins; None in captures of older versions.
    """

    node: str
    taken: str
    fairlead: str
    site: Site
    reason: str
    engine: Engine | None
    mpis: tuple[HostMpi, ...]
    facts: SiteFacts
    here: Here = NOTHING
    nccl: HostNccl | None = None


def take(
    site: str | None = None, prefixes: Sequence[Path] = (), environ: Mapping[str, str] = os.environ
) -> Capture:
    """Looks at this machine; tools are started for what they say of it, each in a time box.

    Args:
        site: name of the profile; None to detect it.
        prefixes: MPIs that would not be found; they come first.
    Raises:
        FairleadError: exit code 2; no profile fits, or a prefix holds no MPI.
    """
    from fairlead.detect.gather import here as facts_here  # not needed to read captures
    from fairlead.detect.network import nccl_host

    chosen, reason = sites.resolve(site, environ)
    by_path = {
        mpi.library.path: mpi
        for prefix in prefixes
        for mpi in host.from_prefix(prefix, environ, site=chosen)
    }
    for mpi in host.discover(environ, site=chosen):
        by_path.setdefault(mpi.library.path, mpi)
    try:
        engine = engines.choose(None, chosen.engine.kinds, environ)
    except FairleadError:
        engine = None  # planning with the capture reports it
    return Capture(
        node=platform.node(),
        taken=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        fairlead=__version__,
        site=chosen,
        reason=reason,
        engine=engine,
        mpis=tuple(by_path.values()),
        facts=facts_here(environ),
        here=look(chosen, environ),
        nccl=_of_no_user(nccl_host(chosen, environ)),
    )


def _of_no_user(nccl: HostNccl) -> HostNccl:
    """Without what a user's file and shell say: another's may be planned for."""
    networks = tuple(replace(network, named="") for network in nccl.networks)
    return replace(nccl, networks=networks, user_conf={})


def write(capture: Capture, path: Path) -> None:
    """Writes the file.

    Raises:
        FairleadError: it cannot be written.
    """
    document = {"schema": SCHEMA, "version": VERSION, **to_json(capture)}
    with os_error_as("output-unwritable-capture", path=path), atomic_write(path, "w") as out:
        out.write(json.dumps(document, indent=1, sort_keys=True) + "\n")


def is_capture(name: str) -> bool:
    """Whether ``--site`` means a file of this kind."""
    return name.endswith(SUFFIX)


def read(path: Path) -> Capture:
    """The capture in ``path``.

    Raises:
        FairleadError: exit code 2; it cannot be read, or is not a capture that this fairlead reads.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES >> 20} MiB")
        document = bounded_json.loads(raw)
        if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
            raise ValueError("`fairlead site capture` did not write it")
        if (version := document.pop("version", None)) != VERSION:
            raise ValueError(f"its version is {version!r}, this fairlead reads {VERSION}")
        return from_json(Capture, document)
    except (OSError, ValueError, RecursionError) as exc:
        why = (isinstance(exc, OSError) and exc.strerror) or str(exc)
        quoted = shlex.quote(path.name)
        raise fail("site-capture", path=path, why=why[:300], path_name=quoted) from None


def mpi_below(capture: Capture, prefix: Path) -> tuple[HostMpi, ...]:
    """The captured MPIs that are installed in ``prefix``; at least one.

    Raises:
        FairleadError: exit code 2; there is none.
    """
    wanted = os.path.normpath(prefix)
    mpis = tuple(m for m in capture.mpis if os.path.normpath(m.prefix) == wanted)
    if mpis:
        return tuple(replace(m, found_by=f"named by --mpi {prefix}") for m in mpis)
    known = ", ".join(dict.fromkeys(mpi.prefix for mpi in capture.mpis))
    raise fail(
        "host-mpi-not-captured",
        prefix=prefix,
        capture_node=capture.node,
        known=known,
        quoted_prefix=shlex.quote(str(prefix)),
    )


def engine_of(capture: Capture) -> Engine:
    """How the machine's engine behaves.

    Raises:
        FairleadError: exit code 121; it has none.
    """
    if capture.engine is None:
        raise fail("engine-not-captured", capture_node=capture.node, taken=capture.taken)
    return capture.engine
