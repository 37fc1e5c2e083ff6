"""Which storage is meant: what the site's profile calls memory, node-local disk and burst buffer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.base.errors import FairleadError, fail
from fairlead.schedulers.registry import job_variables
from fairlead.site.model import Storage

WORDS = ("memory", "node-local", "burst-buffer")
# What DataWarp sets in a job that requested striped space (see datawarp.py).
DATAWARP = "DW_JOB_STRIPED"
# By what a job is known: two runs with the same value are of one job.


@dataclass(frozen=True)
class Place:
    """A storage near the nodes.

    Attributes:
        kind: one of :data:`WORDS`, or ``path``.
        path: its folder.
        why: who says that it is that one.
    """

    kind: str
    path: str
    why: str


def choose(wanted: str, storage: Storage, site: str, environ: Mapping[str, str]) -> Place:
    """The storage that ``--stage-to`` means; the site's node-local disk, else its memory, without.

    Args:
        wanted: one of :data:`WORDS`, a path, or empty.
        site: the profile's name, for messages.
    Raises:
        FairleadError: exit code 2; the site has none of that kind, or its path holds a variable that is
            not set here.
    """
    if not wanted:
        kind = "node-local" if storage.node_local else "memory"
        first = choose(kind, storage, site, environ)
        return Place(first.kind, first.path, f"{first.why}; --stage-to names another")
    if wanted == "burst-buffer":
        return _burst_buffer(storage, site, environ)
    if wanted in WORDS:
        path = storage.memory if wanted == "memory" else storage.node_local
        if not path:
            raise _none(wanted, storage, site)
        why = f"`{path}`, the {wanted} storage of site {site}"
        return Place(wanted, expanded(path, site, environ), why)
    if "/" not in wanted:
        raise fail("stage-place-unknown", wanted=wanted, words=", ".join(WORDS))
    return Place("path", wanted, "named by --stage-to")


def expanded(path: str, site: str, environ: Mapping[str, str]) -> str:
    """``path`` with the job's variables put in, ``$NAME`` or ``${NAME}``.

    Raises:
        FairleadError: exit code 2; one of them is not set.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if not environ.get(name):
            raise fail("stage-place-variable-unset", name=name, path=path, site=site)
        return environ[name]

    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", value, path)


def job_here(environ: Mapping[str, str]) -> str:
    """The scheduler's job that this is in, by variable and value; empty outside of one."""
    return next((f"{name}={environ[name]}" for name in job_variables() if environ.get(name)), "")


def _burst_buffer(storage: Storage, site: str, environ: Mapping[str, str]) -> Place:
    if storage.burst_buffer != "datawarp":
        raise _none("burst-buffer", storage, site)
    path = environ.get(DATAWARP, "")
    if not path:
        raise fail("stage-place-no-datawarp", datawarp=DATAWARP)
    return Place("burst-buffer", path, f"${DATAWARP}, this job's DataWarp space")


def _none(kind: str, storage: Storage, site: str) -> FairleadError:
    has = [
        word
        for word, there in zip(
            WORDS,
            (storage.memory, storage.node_local, storage.burst_buffer != "none"),
            strict=True,
        )
        if there
    ]
    return fail(
        "stage-place-not-in-profile",
        site=site,
        kind=kind,
        has=", ".join(has),
        path=has[0] if has else "PATH",
    )
