"""``fairlead site compare``: what sites and their sources set for NCCL, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click

from fairlead import site as sites
from fairlead.base.text import plain
from fairlead.cli.declare import JSON, argument, declared, option
from fairlead.cli.screen import answer, columns, table
from fairlead.site import Site
from fairlead.site.model import Origin
from fairlead.site.nccl import Variable, compare, with_variables


@click.command("compare")
@declared
def compare_sites(
    names: tuple[str, ...] = argument(metavar="[SITE]...", nargs=-1),
    contradictions: bool = option("--contradictions", "Show only variables with a contradiction."),
    as_json: bool = JSON,
) -> None:
    """Compare what sites set for NCCL and RCCL, variable by variable.

    Lists each value with the profile and the source that states it, and marks contradictions: sources of one
    profile that disagree, and sites on the same network that set different values. Values of other
    sources (`stated`) are known to the profile and not set. SITE is a profile or a .toml file; without
    one, all sites that set variables for NCCL are compared.

    \b
    fairlead site compare
    fairlead site compare alps frontier
    fairlead site compare alps --contradictions
    """
    profiles = (
        [sites.load_site(name) for name in dict.fromkeys(names)]
        or with_variables(site for _, site in sorted(sites.all_sites().sites.items()))
    )  # fmt: skip
    every = compare(profiles)
    variables = tuple(v for v in every if v.contradicted or not contradictions)
    document = {
        "sites": [site.name for site in profiles],
        "contradictions": sum(v.contradicted for v in every),
        "variables": variables,
    }
    answer(as_json, "site-compare", document, "\n".join(_lines(profiles, every, variables)))


def _lines(
    profiles: Sequence[Site], every: Sequence[Variable], variables: Sequence[Variable]
) -> Iterator[str]:
    width = columns()
    origins = (setting.origin for variable in variables for setting in variable.settings)
    numbers = {origin: n for n, origin in enumerate(dict.fromkeys(origins), start=1)}
    for variable in variables:
        mark = f"  {_mark(variable)}" if variable.contradicted else ""
        yield click.style(plain(variable.name), bold=True) + click.style(plain(mark), fg="yellow")
        rows = list(_rows(variable, numbers))
        if variable.unset:
            rows.append(("-", f"not set by {', '.join(variable.unset)}"))
        yield table(rows, indent="  ", width=width)
    if numbers:
        yield "\n" + click.style("sources", bold=True)
        yield table(
            ((f"[{n}]", _source(origin)) for origin, n in numbers.items()), indent="  ", width=width
        )
    count = sum(v.contradicted for v in every)
    compared = ", ".join(site.name for site in profiles) or "no site"
    yield f"\n{len(every)} variables, {count} with contradictions; compared: {plain(compared)}"


def _rows(variable: Variable, numbers: Mapping[Origin, int]) -> Iterator[tuple[str, str]]:
    """A row for each value: who sets it, and who else states it."""
    for value in dict.fromkeys(s.value for s in variable.settings):
        parts = []
        for word, used in (("set by", True), ("stated by", False)):
            who = [
                f"{s.profile} [{numbers[s.origin]}]"
                for s in variable.settings
                if s.value == value and s.used is used
            ]
            parts += [f"{word} {', '.join(who)}"] if who else []
        yield value or '""', "; ".join(parts)


def _source(origin: Origin) -> str:
    return f"{origin.status.value}: {origin.source}{f', read {origin.read}' if origin.read else ''}"


def _mark(variable: Variable) -> str:
    """Who contradicts whom: ``contradiction: between sites on slingshot; within alps``."""
    between = [f"between sites on {fabric}" for fabric in variable.between]
    within = [f"within {', '.join(variable.within)}"] if variable.within else []
    return f"contradiction: {'; '.join([*between, *within])}"
