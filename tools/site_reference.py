"""The page ``docs/reference/sites.md``, every bundled profile and how well it is known; the keys of a profile.

``python -m tools.site_reference`` writes the page; a test compares. The keys are rendered with the site.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fairlead.base.paths import atomic_write, bundled, checkout
from fairlead.site import layers, profile
from fairlead.site.choose import REPLACE
from fairlead.site.model import Site, Status

_INTRO = """\
# Bundled site profiles

<!-- Made by `python -m tools.site_reference` from sitecfg/; do not edit. -->

[Site profiles](../howto/site-profiles.md) explains them. *Known* counts values, inherited ones included: seen to work with real
software · documented by the site or manufacturer · from users' scripts and issues · guessed. fairlead has run on none of these
machines but `laptop`; what was read about them were stored copies, possibly older than the date of reading.
`fairlead site show NAME --sources` prints a profile's notes, values and their sources.
"""


def page(sites: Mapping[str, Site]) -> str:
    """The page as it is published."""
    parts = [_INTRO]
    for title, families in (("Sites", False), ("Families", True)):
        chosen = [site for _, site in sorted(sites.items()) if site.is_family is families]
        parts += [f"\n## {title}\n\n", *_table(chosen)]
    return "".join(parts)


def keys_section() -> str:
    """Every section of a profile with its keys, from the schema."""
    whole = profile.schema()
    parts = []
    for name, section in whole["properties"].items():
        repeated = section.get("type") == "array"
        reference = (section["items"] if repeated else section).get("$ref", "")
        if name == "sources":
            (reference,) = (entry["$ref"] for entry in section["patternProperties"].values())
        keys = whole["$defs"][reference.rpartition("/")[2]]["properties"]
        title = (
            f"[[{name}]]" if repeated else f"[{name}.NAME]" if name == "sources" else f"[{name}]"
        )
        parts.append(f"\n## `{title}`\n\n")
        shared = () if repeated else ("source", "sources")
        parts += [f"- `{key}`: {_meaning(at)}\n" for key, at in keys.items() if key not in shared]
    return "".join(parts)


def _meaning(key: Mapping[str, Any]) -> str:
    allowed = key.get("enum") or key.get("items", {}).get("enum") or ()
    values = ", ".join(f"`{value}`" for value in allowed if value)
    return f"{_escaped(key['description'])}{f': {values}' if values else ''}"


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
    return {path.stem: layers.load(path, environ) for path in sorted(own.rglob("*.toml"))}


def main() -> None:
    root = checkout()
    if root is None:
        raise SystemExit("the page belongs to a checkout of fairlead")
    with atomic_write(Path(root, "docs/reference/sites.md"), "w") as out:
        out.write(page(bundled_sites()))


if __name__ == "__main__":
    main()
