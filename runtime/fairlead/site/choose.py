"""Finds and loads profiles by name, and chooses the one for this machine.

They are looked for in folders, of which a later one comes before an earlier one: those that come with
fairlead, ``/etc/fairlead/sites.d``, the user's own, and what $FAIRLEAD_SITES_EXTRA names. $FAIRLEAD_SITES
takes the place of all of them. A file hides those of its name in earlier folders, unless it extends its
own name: then it is laid over them.

All profiles are cached together, under the content of every file read: validating them takes
longer than everything else before a launch.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairlead import __version__
from fairlead.base.errors import FairleadError, Finding, fail
from fairlead.base.paths import bundled, cache_dir, config_dir
from fairlead.base.serde import cached
from fairlead.base.suggest import suggest
from fairlead.site.model import Site

CHOSEN = "FAIRLEAD_SITE"
REPLACE, EXTEND = "FAIRLEAD_SITES", "FAIRLEAD_SITES_EXTRA"
SYSTEM = Path("/etc/fairlead/sites.d")
_SCHEMA = 4


def folders(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Where profiles are looked for; a later folder comes before an earlier one.

    Raises:
        FairleadError: exit code 2; a variable names a folder that there is not. Without what is in it
            another profile would be taken, silently.
    """
    return (*(_listed(REPLACE, environ) or usual_folders(environ)), *_listed(EXTEND, environ))


def usual_folders(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Those that no variable names: fairlead's, the system's, the user's own."""
    own = bundled("sitecfg")
    return own / "families", own, SYSTEM, config_dir(environ) / "sites"


def _listed(variable: str, environ: Mapping[str, str]) -> tuple[Path, ...]:
    named = tuple(Path(part) for part in environ.get(variable, "").split(":") if part)
    for folder in named:
        if not folder.is_dir():
            raise fail(
                "site-folder-file" if folder.exists() else "site-folder-missing",
                variable=variable,
                folder=folder,
                quoted_folder=shlex.quote(str(folder)),
            )
    return named


def files(environ: Mapping[str, str] = os.environ) -> dict[str, tuple[Path, ...]]:
    """Every profile's files by its name; the one that comes first is the last."""
    profiles: dict[str, tuple[Path, ...]] = {}
    for folder in folders(environ):
        for path in sorted(folder.glob("*.toml")) if folder.is_dir() else ():
            profiles[path.stem] = (*profiles.get(path.stem, ()), path)
    return profiles


@dataclass(frozen=True)
class Sites:
    """Every profile that is sound.

    Attributes:
        wrong: the mistakes of the others, by name.
    """

    sites: Mapping[str, Site]
    wrong: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)


_KNOWN: dict[Path, Sites] = {}  # a launch asks four times


def all_sites(environ: Mapping[str, str] = os.environ) -> Sites:
    """Every profile that can be found, by name."""
    profiles = files(environ)
    key = _key([p for paths in profiles.values() for p in paths])

    def load() -> Sites:
        from fairlead.site import layers  # pydantic, only when something must be checked

        sites: dict[str, Site] = {}
        wrong: dict[str, tuple[Finding, ...]] = {}
        for name, paths in profiles.items():
            try:
                sites[name] = layers.load(paths[-1], environ)
            except FairleadError as exc:
                wrong[name] = exc.findings
        return Sites(sites, wrong)

    kept = cache_dir(environ) / "facts" / f"sites-{key}.json"
    if kept not in _KNOWN:
        _KNOWN[kept] = cached(Sites, kept, load)
    return _KNOWN[kept]


def _key(paths: list[Path]) -> str:
    digest = hashlib.sha256(f"{_SCHEMA} {__version__}".encode())
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError:
            content = b""
        digest.update(f"\n{path} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:20]


def load_site(name: str, environ: Mapping[str, str] = os.environ) -> Site:
    """The profile called ``name``, or in the file ``name`` when it is a ``.toml`` path; checked.

    Raises:
        FairleadError: exit code 2; it is unknown, or its files have mistakes.
    """
    profiles = files(environ)
    path = Path(name) if name.endswith(".toml") else profiles.get(name, (None,))[-1]
    if path is None:
        raise fail("site-unknown", name=name, suggestion=suggest(name, profiles))
    if not name.endswith(".toml"):
        every = all_sites(environ)
        if name in every.sites:
            return every.sites[name]
    from fairlead.site import layers

    return layers.load(path, environ)


def resolve(name: str | None, environ: Mapping[str, str] = os.environ) -> tuple[Site, str]:
    """The profile to use and why: ``--site``, ``$FAIRLEAD_SITE``, or what was detected.

    Raises:
        FairleadError: exit code 2; none was named and none fits, or a profile that might have is
            wrong. Guessing would be silent.
    """
    from fairlead.site.match import detect  # it asks for all profiles, which are here

    if name:
        return load_site(name, environ), "named by --site"
    if chosen := environ.get(CHOSEN):
        return load_site(chosen, environ), f"named by ${CHOSEN}"
    detected = detect(environ)
    if detected.profile is None:
        reasons = "\n".join(f"{site}: {why[0]}" for site, why in detected.against.items() if why)
        tied = "\n".join(detected.notes)
        node, why = platform.node(), tied or reasons
        if detected.ties:
            raise fail("site-detect-tie", node=node, tied=why, ties=detected.ties[0])
        named = [load_site(name, environ) for name in detected.candidates]
        choices = "".join(f"\n`--site {site.name}`: {site.summary}" for site in named)
        raise fail("site-detect-none", node=node, tied=why, choices=choices)
    reason = f"guessed: {'; '.join(detected.reasons)}" if detected.guess else "detected"
    return load_site(detected.profile, environ), reason
