"""The page ``docs/reference/sites.md``: every bundled profile, and how well it is known.

``python -m tools.site_reference`` writes it; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from fairlead.base.paths import atomic_write, bundled, checkout
from fairlead.site import layers
from fairlead.site.model import Site, Status
from fairlead.site.places import REPLACE

_INTRO = """\
# Bundled site profiles

<!-- Made by `python -m tools.site_reference` from sitecfg/; do not edit. -->

What a profile is, and how to write one, is in [the guide](../howto/site-profiles.md). *Known* counts values with what
a profile inherits: seen to work with real software · documented by the site or the maker · from users'
scripts and issues · guessed. None of the machines below but `laptop` was at hand: no value of theirs
was tried by fairlead there, and what was read of them were stored copies, which may be older than the day
on which they were read. `fairlead site show NAME --sources` says who says each value.
"""


def page(sites: Mapping[str, Site]) -> str:
    """The page as it is published."""
    parts = [_INTRO]
    for title, families in (("Sites", False), ("Families", True)):
        chosen = [site for _, site in sorted(sites.items()) if site.is_family is families]
        parts += [f"\n## {title}\n\n", *_table(chosen)]
    parts.append("\n## What a person should know\n")
    for _, site in sorted(sites.items(), key=lambda s: (s[1].is_family, s[0])):
        own = site.notes[: len(site.notes) - len(_inherited(site, sites))]
        if own:
            parts += [f"\n### `{site.name}`\n\n", *(f"* {_escaped(note)}\n" for note in own)]
    return "".join(parts)


def _inherited(site: Site, sites: Mapping[str, Site]) -> tuple[str, ...]:
    return sites[site.lineage[1]].notes if len(site.lineage) > 1 else ()


def _table(sites: Iterable[Site]) -> Iterable[str]:
    yield "| profile | what it is | scheduler, launcher | engines | fabric | known | until |\n"
    yield "| --- | --- | --- | --- | --- | --- | --- |\n"
    for site in sites:
        known = " · ".join(str(site.known[status]) for status in Status)
        cells = (
            f"`{site.name}`",
            _escaped(site.summary),
            f"{site.scheduler.kind}, {', '.join(site.launcher.kinds)}",
            ", ".join(site.engine.kinds),
            site.fabric.kind,
            known,
            site.until,
        )
        yield f"| {' | '.join(cells)} |\n"


def _escaped(text: str) -> str:
    """Outside code, an underscore and a bar are markup."""
    pieces = text.split("`")
    pieces[::2] = [
        p.replace("|", "\\|").replace("<", "&lt;").replace("_", "\\_") for p in pieces[::2]
    ]
    return "`".join(pieces)


def bundled_sites() -> dict[str, Site]:
    """The profiles that come with fairlead, whatever lies over them on this machine."""
    own = bundled("sitecfg")
    environ = {REPLACE: f"{own / 'families'}:{own}"}
    return {path.stem: layers.load(path, environ).site for path in sorted(own.rglob("*.toml"))}


def main() -> None:
    root = checkout()
    if root is None:
        raise SystemExit("the page belongs to a checkout of fairlead")
    with atomic_write(Path(root, "docs/reference/sites.md"), "w") as out:
        out.write(page(bundled_sites()))


if __name__ == "__main__":
    main()
