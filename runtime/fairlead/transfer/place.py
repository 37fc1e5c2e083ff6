"""Which storage is meant: what the site's profile calls memory, node-local disk and burst buffer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairlead.base.errors import fail
from fairlead.schedulers.registry import job_variables
from fairlead.site.model import Storage

DATAWARP = "DW_JOB_STRIPED"  # what DataWarp sets in a job that requested striped space


@dataclass(frozen=True)
class Place:
    """A storage near the nodes.

    Attributes:
        kind: ``memory``, ``node-local``, ``burst-buffer`` or ``path``.
        path: its folder.
        why: the source of this choice.
    """

    kind: str
    path: str
    why: str


def choose(wanted: str, storage: Storage, site: str, environ: Mapping[str, str]) -> Place:
    """The storage that ``--stage-to`` means; without it the site's node-local disk, else its memory.

    Args:
        wanted: a kind of storage, a path, or empty.
        site: the profile's name, for messages.
    Raises:
        FairleadError: exit code 2; the site has none of that kind, or its path contains a variable that is
            not set here.
    """
    if not wanted:
        default = choose("node-local" if storage.node_local else "memory", storage, site, environ)
        return replace(default, why=f"{default.why}; --stage-to names another")
    paths = {
        "memory": storage.memory,
        "node-local": storage.node_local,
        "burst-buffer": f"${DATAWARP}" if storage.burst_buffer == "datawarp" else "",
    }
    if wanted not in paths:
        if "/" not in wanted:
            raise fail("stage-place-unknown", wanted=wanted, words=", ".join(paths))
        return Place("path", wanted, "named by --stage-to")
    path = paths[wanted]
    if not path:
        has = [kind for kind, other in paths.items() if other]
        path, listed = has[0] if has else "PATH", ", ".join(has)
        raise fail("stage-place-not-in-profile", site=site, kind=wanted, has=listed, path=path)
    if wanted == "burst-buffer":
        if not environ.get(DATAWARP):
            raise fail("stage-place-no-datawarp", datawarp=DATAWARP)
        return Place(wanted, environ[DATAWARP], f"{path}, this job's DataWarp space")
    why = f"`{path}`, the {wanted} storage of site {site}"
    return Place(wanted, expanded(path, site, environ), why)


def expanded(path: str, site: str, environ: Mapping[str, str]) -> str:
    """``path`` with the job's variables put in, ``$NAME`` or ``${NAME}``.

    Raises:
        FairleadError: exit code 2; one of them is not set.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not environ.get(name):
            raise fail("stage-place-variable-unset", name=name, path=path, site=site)
        return environ[name]

    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", value, path)


def job_here(environ: Mapping[str, str]) -> str:
    """The current job of a scheduler, by variable and value; empty outside of one."""
    return next((f"{name}={environ[name]}" for name in job_variables() if environ.get(name)), "")
