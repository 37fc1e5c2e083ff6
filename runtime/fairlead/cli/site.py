"""``fairlead site``: profiles, and which one this machine is."""

from __future__ import annotations

import platform
from pathlib import Path

import click

from fairlead import capture as captures
from fairlead import hostmpi, siteprofile
from fairlead import site as sites
from fairlead.cli.screen import json_option, print_json, table
from fairlead.serial import to_json


@click.group(short_help="Site profiles: list, show, detect, capture.")
def site() -> None:
    """Site profiles: what a machine is known to be, and the evidence that this is one.

    \b
    fairlead site detect            which profile this machine is, and why
    fairlead site show laptop       every value of a profile
    fairlead site capture           this machine as a file, to plan for it elsewhere
    """


@site.command("list")
@json_option
def list_profiles(as_json: bool) -> None:
    """The profiles that fairlead knows."""
    profiles = [siteprofile.read(path) for path in sorted(sites.profile_files().values())]
    if as_json:
        print_json("site-list", {"sites": [p.model_dump(mode="json") for p in profiles]})
    else:
        click.echo(table([(p.site.name, p.site.summary) for p in profiles]))


@site.command("show")
@click.argument("name")
@json_option
def show_profile(name: str, as_json: bool) -> None:
    """Every value of a profile, and what it means."""
    profile = siteprofile.read(sites.profile_file(name))
    if as_json:
        print_json("site", {"site": profile.model_dump(mode="json")})
        return
    rows = []
    for title in type(profile).model_fields:
        part = getattr(profile, title)
        for key, info in type(part).model_fields.items():
            value = getattr(part, key)
            shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            rows.append((f"{title}.{key}", shown, info.description or ""))
    click.echo(table(rows, ("key", "value", "meaning")))


@site.command("detect")
@json_option
def detect_site(as_json: bool) -> None:
    """Which profile this machine is, with the evidence, and the MPIs that were found on it."""
    found = sites.detect()
    hosts = hostmpi.discover()
    if as_json:
        mpis = [
            {
                "title": h.library.title,
                "family": h.library.family,
                "path": h.library.path,
                "prefix": h.prefix,
                "level": h.library.level,
                "launcher": to_json(h.launcher),
                "found_by": h.found_by,
            }
            for h in hosts
        ]
        print_json("site-detect", {**to_json(found), "mpis": mpis})
        return
    verdict = f"site `{found.profile}`" if found.profile else "no profile fits"
    click.echo(f"{click.style(platform.node(), bold=True)}: {verdict}\n")
    click.echo(
        table(
            [(e.subject, e.seen, e.meaning) for e in found.evidence], ("evidence", "seen", "means")
        )
    )
    rows = [
        (
            h.library.title,
            h.library.family.value,
            h.prefix,
            h.launcher.title if h.launcher else "no launcher",
            h.found_by,
        )
        for h in hosts
    ]
    click.echo(
        "\n"
        + (
            table(rows, ("MPI", "family", "prefix", "launcher", "found"))
            if rows
            else "no MPI on this machine: `fairlead doctor --fix host-mpi` installs one"
        )
    )
    for name, why in found.against.items():
        click.echo(f"\nnot {name}: {'; '.join(why)}")


@site.command("capture")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file, which ends in .json. [default: NODE.json]",
)
@click.option("--site", metavar="NAME", help="The site profile, instead of the detected one.")
@click.option(
    "--mpi",
    "prefixes",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PREFIX",
    help="An MPI that `fairlead site detect` does not find. Repeatable.",
)
@json_option
def capture_site(
    output: Path | None, site: str | None, prefixes: tuple[Path, ...], as_json: bool
) -> None:
    """This machine as a file, to plan for it where one is not.

    It holds names, versions, symbols and paths of this machine's MPIs and of what they need, and
    how its container engine behaves; no program or library. Any fairlead then answers for it:

    \b
    fairlead site capture -o login1.json
    fairlead preflight tensorflow --site login1.json
    fairlead explain tensorflow --site login1.json
    """
    path = output or Path(f"{platform.node()}{captures.SUFFIX}")
    if path.suffix != captures.SUFFIX:
        raise click.UsageError(
            f"-o {path}: --site knows a capture by its name, which ends in .json"
        )
    taken = captures.take(site, prefixes)
    captures.write(taken, path)
    mpis = [f"{m.library.title} ({m.library.soname}) in {m.prefix}" for m in taken.mpis]
    if as_json:
        told = {"path": str(path), "node": taken.node, "site": taken.site.name, "mpis": mpis}
        print_json("site-capture-written", {**told, "bytes": path.stat().st_size})
        return
    click.echo(str(path))
    engine = taken.engine.path if taken.engine else "no engine"
    size = f"{path.stat().st_size / 1e3:.0f} kB"
    click.echo(f"captured: {taken.node}, site {taken.site.name}, {engine}, {size}", err=True)
    for line in mpis or ["no MPI"]:
        click.echo(f"  {line}", err=True)
