"""``fairlead site``: profiles, and which one this machine is."""

from __future__ import annotations

import platform
import shlex
from pathlib import Path

import click

from fairlead import site as sites
from fairlead.cli.declare import FILE, JSON, argument, declared, option
from fairlead.cli.export import export_site
from fairlead.cli.group import Group
from fairlead.cli.screen import answer, columns, print_findings, print_json, show_schema, table
from fairlead.cli.site_compare import compare_sites
from fairlead.cli.site_detect import check_site, detect_site, why_not_site
from fairlead.cli.site_show import profile_lines
from fairlead.detect import capture as captures
from fairlead.site import Status


@click.group(cls=Group)
def site() -> None:
    """Manage site profiles: what is known of a machine, and how to recognise it.

    \b
    fairlead site detect            which profile this machine is, and why
    fairlead site check             where the machine differs from its profile
    fairlead site show laptop       every value of a profile
    fairlead site compare           what sites set for NCCL, and where they contradict each other
    fairlead site new mycluster --extends infiniband    write a profile of your own
    fairlead site capture           capture this machine in a file, to plan for it elsewhere
    fairlead site export --for apptainer    export a site as configuration of another tool
    """


@site.command("list")
@declared
def list_profiles(as_json: bool = JSON) -> None:
    """List the known profiles: sites, then families of machines.

    \b
    fairlead site list
    """
    every = sites.all_sites()
    known = sorted(every.sites.values(), key=lambda s: (s.is_family, s.name))
    if as_json:
        profiles = [
            {
                "name": s.name,
                "summary": s.summary,
                "family": s.is_family,
                "lineage": s.lineage,
                "since": s.since,
                "until": s.until,
                "values": s.known,
                "files": sites.files()[s.name],
            }
            for s in known
        ]
        print_json("site-list", {"sites": profiles, "wrong": every.wrong})
        return
    for title, family in (("site", False), ("family", True)):
        rows = []
        for s in (s for s in known if s.is_family is family):
            guessed = f"{s.known[Status.GUESS]} of {sum(s.known.values())}"
            rows.append((s.name, " < ".join(s.lineage[1:]), s.until, guessed, s.summary))
        if rows:
            head = (title, "extends", "until", "guessed", "")
            click.echo(table(rows, head, width=columns()) + "\n")
    for findings in every.wrong.values():
        print_findings(findings)


@site.command("show")
@declared
def show_profile(
    name: str = argument(metavar="SITE"),
    sources: bool = option(
        "--sources", "Also show the source of each value, and when it was read."
    ),
    as_json: bool = JSON,
) -> None:
    """Show every value of a profile, how well it is known, and its source.

    SITE is a profile or a .toml file. Includes inherited values; values that no file sets are left
    out.

    \b
    fairlead site show laptop
    """
    profile = sites.load_site(name)
    text = "\n".join(profile_lines(profile, sources, columns()))
    answer(as_json, "site", {"site": profile}, text)


@site.command("new")
@declared
def new_profile(
    name: str,
    parent: str | None = option(
        "--extends PROFILE", "The family or site to extend.  [default: amend NAME itself]"
    ),
    output: Path | None = option(
        "-o --output", "Output file, NAME.toml.  [default: in ~/.config/fairlead/sites]", type=FILE
    ),
    dry_run: bool = option("--dry-run", "Print what would be written, and write nothing."),
    as_json: bool = JSON,
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
    path, then = str(made.path), None
    if not dry_run:
        new.write(made)
        then = f"then: fairlead site show {shlex.quote(path)}"
    document = {"path": path, "text": made.text, "written": not dry_run}
    answer(as_json, "site-new", document, made.text if dry_run else path, then)


@site.command("schema")
@declared
def print_schema(
    output: Path | None = option("-o --output", "Write it there.", type=FILE), as_json: bool = JSON
) -> None:
    """Print the JSON Schema of a site profile, for editors.

    Add `#:schema FILE` at the top of a profile, and the editor completes its keys.

    \b
    fairlead site schema -o site.schema.json
    """
    from fairlead.site import profile

    show_schema("site-schema", profile.schema_text(), output, as_json)


@site.command("capture")
@declared
def capture_site(
    output: Path | None = option(
        "-o --output", "Output file, ending in .json.  [default: NODE.json]", type=FILE
    ),
    site: str | None = option("--site NAME", "Use this site profile instead of the detected one."),
    prefixes: tuple[Path, ...] = option(
        "--mpi PREFIX", "Prefix of an MPI that `fairlead site detect` does not find. Repeatable."
    ),
    as_json: bool = JSON,
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
    capture = captures.take(site, prefixes)
    captures.write(capture, path)
    mpis = [f"{m.library.title} ({m.library.soname}) in {m.prefix}" for m in capture.mpis]
    node, name, size = capture.node, capture.site.name, path.stat().st_size
    engine = capture.engine.path if capture.engine else "no engine"
    captured = f"captured: {node}, site {name}, {engine}, {size / 1e3:.0f} kB"
    document = {"path": path, "node": node, "site": name, "mpis": mpis, "bytes": size}
    more = "\n  ".join([captured, *(mpis or ["no MPI"])])
    answer(as_json, "site-capture-written", document, str(path), more)


for command in (detect_site, why_not_site, check_site, compare_sites, export_site):
    site.add_command(command)
