"""Writes a new profile: valid as written, with comments for the values to fill in."""

from __future__ import annotations

import datetime
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base.errors import fail, os_error_as
from fairlead.base.paths import atomic_write, config_dir
from fairlead.site.choose import all_sites, load_site
from fairlead.site.model import Site
from fairlead.site.profile import schema_text

_SCHEMA = "site.schema.json"
_LINE = 92  # characters
_HEAD = """\
#:schema {schema}
# {title}
# What is not said here comes from {parent}; `fairlead site show {shown}` shows all of it.
# Every value says where it comes from: a section's `source` names an entry of [sources], or is
# "guess". `sources.KEY = "…"` says it for one key.

[site]
name = {name}
summary = {summary}
extends = {extends}

[sources.own]
text = "seen on the machine"
status = "run"  # or documented, user, guess
read = {today}
"""
# What a site engineer fills in first: section, what it is for, keys with an example where the base
# has no value of its own.
_SECTIONS: tuple[tuple[str, str, tuple[tuple[str, Any], ...]], ...] = (
    (
        "detect",
        "By what the machine is known; one of these that holds is enough.",
        (("hostnames", ("login*.example.org", "node[0-9]*")), ("clusters", ("example",))),
    ),
    (
        "scheduler",
        "What gives nodes, and what each of its job scripts needs.",
        (("kind", None), ("account", None), ("directives", ("--partition=normal",))),
    ),
    ("launcher", "What starts ranks, and how they find each other.", (("kinds", None), ("pmi", ("pmi2",)))),
    ("engine", "What runs images; the modules that bring it.", (("kinds", None), ("modules", ("apptainer",)))),
    ("fabric", "Transports that a proof may find. What is not listed stops a run.", (("accepts", None),)),
    (
        "mpi",
        "Where the MPI is that images are to run on; of several folders the newest.",
        (("search", ("/opt/mpich/*/lib",)), ("modules", ("mpich",))),
    ),
    (
        "dependencies",
        "Where that MPI finds what it needs, beyond the loader's own folders.",
        (("folders", ("/opt/ucx/*/lib",)),),
    ),
    ("binds", "What of the machine a container must see.", (("paths", ("/var/spool/slurmd",)),)),
    ("devices", "Its device nodes.", (("paths", ("/dev/infiniband/*",)),)),
    ("environment", "Variables that a container needs here.", (("set", {"OMP_PROC_BIND": "close"}),)),
    (
        "nccl",
        "Where NCCL's network plugin is, what it needs, and what to set for it.",
        (
            ("folders", ("/opt/nccl-plugin/*/lib",)),
            ("libraries", ("/opt/libfabric/*/lib",)),
            ("env", {"NCCL_CROSS_NIC": "1"}),
        ),
    ),
    ("storage", "Where data can lie.", (("shared", "$SCRATCH"), ("node_local", "/tmp"))),
)  # fmt: skip


@dataclass(frozen=True)
class NewSite:
    """What would be written, and where."""

    path: Path
    text: str


def plan(
    name: str, parent: str | None, path: Path | None, environ: Mapping[str, str] = os.environ
) -> NewSite:
    """A new profile ``name`` that extends ``parent``, or by default the existing profile of that name.

    Args:
        path: the file; by default in the user's folder of profiles.
    Raises:
        FairleadError: exit code 2; the name is invalid, there is no profile to extend or it is invalid, or
            the file exists.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", name):
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        raise fail("site-new-name", name=name, near=near)
    known = all_sites(environ).sites
    if parent is None and name not in known:
        families = ", ".join(sorted(n for n, site in known.items() if site.is_family))
        raise fail("site-new-extends", name=name, families=families)
    parent = parent or name
    base = load_site(parent, environ)
    path = path or config_dir(environ) / "sites" / f"{name}.toml"
    if path.name != f"{name}.toml":
        raise fail(
            "site-new-file",
            name=name,
            path=path,
            parent=parent,
            path_parent=shlex.quote(str(path.parent / name)),
        )
    if path.exists() or path.is_symlink():
        raise fail("site-new-exists", path=path, quoted_path=shlex.quote(str(path)))
    return NewSite(path, _text(name, base, parent, path, environ))


def _text(name: str, base: Site, parent: str, path: Path, environ: Mapping[str, str]) -> str:
    at_home = path.parent.absolute() == (config_dir(environ) / "sites").absolute()
    title = f"{name}: {base.summary}" if name == parent else f"{name}, which is like {parent}."
    head = _HEAD.format(
        schema=_SCHEMA,
        title=title,
        parent=f"the {parent} that it amends" if name == parent else parent,
        shown=name if at_home else shlex.quote(str(path)),
        name=json.dumps(name),
        summary=json.dumps(base.summary if name == parent else f"{name}, on top of {parent}"),
        extends=json.dumps(parent),
        today=datetime.date.today().isoformat(),
    )
    return head + "".join(_sections(base))


def _sections(base: Site) -> Iterator[str]:
    for section, purpose, keys in _SECTIONS:
        yield f'\n# {purpose}\n# [{section}]\n# source = "own"\n'
        for key, example in keys:
            inherited = base.value(f"{section}.{key}")
            value = inherited if inherited or example is None else example
            yield from (f"# {line}\n" for line in _toml(key, value))


def _toml(key: str, value: Any) -> list[str]:
    """``key = value`` in lines; strings, lists and booleans are written as in JSON."""
    if isinstance(value, Mapping):
        return [f"{key} = {{ " + ", ".join(f"{k} = {_json(v)}" for k, v in value.items()) + " }"]
    line = f"{key} = {_json(value)}"
    if not isinstance(value, tuple) or len(line) <= _LINE:
        return [line]
    lines = [f"{key} = [", "  "]
    for item in map(_json, value):
        if lines[-1].strip() and len(lines[-1]) + len(item) > _LINE:
            lines.append("  ")
        lines[-1] += f"{' ' * bool(lines[-1].strip())}{item},"
    return [*lines, "]"]


def _json(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def write(made: NewSite) -> None:
    """Writes the profile, and the schema that editors read, into its folder.

    Raises:
        FairleadError: exit code 2; the folder cannot be written to.
    """
    with os_error_as("site-new-unwritable", made_path=made.path):
        for path, text in ((made.path.parent / _SCHEMA, schema_text()), (made.path, made.text)):
            with atomic_write(path, "w") as out:
                out.write(text)
