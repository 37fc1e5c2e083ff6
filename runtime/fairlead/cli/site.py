"""``fairlead site``: profiles, and which one this machine is."""

from __future__ import annotations

import platform
import shlex
from pathlib import Path

import click

from fairlead import site as sites
from fairlead.base.serde import to_json
from fairlead.cli import site_detect
from fairlead.cli.export import export_site
from fairlead.cli.screen import (
    columns,
    json_option,
    plain,
    print_findings,
    print_json,
    show_schema,
    table,
)
from fairlead.cli.site_show import profile_lines
from fairlead.detect import capture as captures
from fairlead.site import Status


@click.group(short_help="Manage site profiles: list, show, new, detect, check, …")
def site() -> None:
    """Manage site profiles: what is known of a machine, and how to recognise it.

    \b
    fairlead site detect            which profile this machine is, and why
    fairlead site check             where the machine differs from its profile
    fairlead site show laptop       every value of a profile
    fairlead site new mycluster --extends infiniband    write a profile of your own
    fairlead site capture           capture this machine in a file, to plan for it elsewhere
    fairlead site export --for X    export a site as configuration of another tool
    """


site.add_command(export_site)


@site.command("list")
@json_option
def list_profiles(as_json: bool) -> None:
    """List the known profiles: sites, then families of machines."""
    every = sites.all_sites()
    known = sorted(every.sites.values(), key=lambda s: (s.is_family, s.name))
    if as_json:
        rows = [
            {
                "name": s.name,
                "summary": s.summary,
                "family": s.is_family,
                "lineage": list(s.lineage),
                "since": s.since,
                "until": s.until,
                "values": {status.value: n for status, n in s.known.items()},
                "files": [str(p) for p in sites.files()[s.name]],
            }
            for s in known
        ]
        wrong = {n: [f.to_json() for f in found] for n, found in every.wrong.items()}
        print_json("site-list", {"sites": rows, "wrong": wrong})
        return
    for title, family in (("site", False), ("family", True)):
        shown = [
            (
                plain(s.name),
                " < ".join(s.lineage[1:]),
                s.until,
                f"{s.known[Status.GUESS]} of {sum(s.known.values())}",
                plain(s.summary),
            )
            for s in known
            if s.is_family is family
        ]
        if shown:
            click.echo(table(shown, (title, "extends", "until", "guessed", ""), width=columns()))
            click.echo()
    for findings in every.wrong.values():
        print_findings(findings)


@site.command("show")
@click.argument("name")
@click.option(
    "--sources", is_flag=True, help="Also show the source of each value, and when it was read."
)
@json_option
def show_profile(name: str, sources: bool, as_json: bool) -> None:
    """Show every value of a profile, how well it is known, and its source.

    NAME is a profile or a .toml file. Includes inherited values; values that no file sets are left
    out.
    """
    profile = sites.load_site(name)
    if as_json:
        print_json("site", {"site": to_json(profile)})
        return
    for line in profile_lines(profile, sources, columns()):
        click.echo(line)


@site.command("new")
@click.argument("name")
@click.option(
    "--extends",
    "parent",
    metavar="PROFILE",
    help="The family or site to extend.  [default: amend NAME itself]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output file, NAME.toml.  [default: in ~/.config/fairlead/sites]",
)
@click.option("--dry-run", is_flag=True, help="Print what would be written, and write nothing.")
@json_option
def new_profile(
    name: str, parent: str | None, output: Path | None, dry_run: bool, as_json: bool
) -> None:
    """Write a new profile of your own; never overwrites a file.

    The profile is valid as written: it inherits everything from PROFILE. The values that sites
    usually set are in it as comments, with the inherited values.

    \b
    fairlead site new mycluster --extends infiniband
    fairlead site new perlmutter                      amend an existing profile
    """
    from fairlead.site import new

    made = new.plan(name, parent, output)
    if not dry_run:
        new.write(made)
    if as_json:
        print_json("site-new", {"path": str(made.path), "text": made.text, "written": not dry_run})
    elif dry_run:
        click.echo(made.text, nl=False)
    else:
        click.echo(str(made.path))
        click.echo(f"then: fairlead site show {shlex.quote(str(made.path))}", err=True)


@site.command("schema")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write it there."
)
@json_option
def print_schema(output: Path | None, as_json: bool) -> None:
    """Print the JSON Schema of a site profile, for editors.

    Add `#:schema FILE` at the top of a profile, and the editor completes its keys.

    \b
    fairlead site schema -o site.schema.json
    """
    from fairlead.site import profile

    show_schema("site-schema", profile.schema_text(), output, as_json)


@site.command("capture")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output file, ending in .json.  [default: NODE.json]",
)
@click.option("--site", metavar="NAME", help="Use this site profile instead of the detected one.")
@click.option(
    "--mpi",
    "prefixes",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PREFIX",
    help="Prefix of an MPI that `fairlead site detect` does not find. Repeatable.",
)
@json_option
def capture_site(
    output: Path | None, site: str | None, prefixes: tuple[Path, ...], as_json: bool
) -> None:
    """Capture this machine in a file, to plan for it elsewhere.

    The file holds names, versions, symbols and paths of this machine's MPIs and their dependencies,
    and how its container engine behaves, but no program or library. Any fairlead can then plan for
    this machine:

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
        fields = {"path": str(path), "node": taken.node, "site": taken.site.name, "mpis": mpis}
        print_json("site-capture-written", {**fields, "bytes": path.stat().st_size})
        return
    click.echo(str(path))
    engine = taken.engine.path if taken.engine else "no engine"
    size = f"{path.stat().st_size / 1e3:.0f} kB"
    click.echo(f"captured: {taken.node}, site {taken.site.name}, {engine}, {size}", err=True)
    for line in mpis or ["no MPI"]:
        click.echo(f"  {line}", err=True)


for command in (site_detect.detect_site, site_detect.why_not_site, site_detect.check_site):
    site.add_command(command)
