"""``fairlead site detect``, ``why-not`` and ``check``: a machine compared with profiles."""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead import site as sites
from fairlead.base.errors import ExitCode, Finding, Severity, fail, finding_of, os_error_as
from fairlead.base.paths import atomic_write
from fairlead.base.serde import to_json
from fairlead.base.text import plain
from fairlead.cli.declare import FILE, JSON, argument, declared, option
from fairlead.cli.screen import answer, finding_lines, print_json, table
from fairlead.detect import capture as captures

if TYPE_CHECKING:  # what a verb does not use, it does not load
    from fairlead.detect.drift import Compared
    from fairlead.detect.model import SiteFacts
    from fairlead.site.match import Detected

_EDITED = "fairlead site show {0}; then move it into ~/.config/fairlead/sites/"


@click.command("detect")
@declared
def detect_site(
    write: str | None = option(
        "--write [FILE]",
        "Write a draft profile with the evidence for each value.  [default: NAME.toml]",
        is_flag=False,
        flag_value="",
    ),
    as_json: bool = JSON,
) -> None:
    """Detect which profile fits this machine, with the evidence, and what the machine has.

    Nothing needs root. A tool that hangs, crashes or is missing only costs its own answers.

    \b
    fairlead site detect
    fairlead site detect --write mycluster
    """
    from fairlead.base.timeboxed import PATIENCE_S
    from fairlead.detect.gather import cautions, gather
    from fairlead.detect.machine import MpiMachine
    from fairlead.detect.table import rows
    from fairlead.site.match import detect

    machine = MpiMachine(patience_s=PATIENCE_S)
    detected = detect(world=machine)
    facts = gather(machine)
    site = sites.load_site(detected.profile) if detected.profile else None
    notes = (*detected.notes, *cautions(facts, site))
    written = _written(write, facts, detected, site) if write is not None else None
    if as_json:
        more = {"cautions": notes, "facts": facts, "draft": written}
        print_json("site-detect", to_json(detected) | more)
        return
    if written:
        click.echo(str(written))
        click.echo(f"next: {_EDITED.format(shlex.quote(str(written)))}", err=True)
        return
    ties = detected.ties
    tied = f"several profiles fit equally: {', '.join(ties)}" if ties else "no profile fits"
    guess = ", a guess:" if detected.guess else ""
    verdict = f"site `{detected.profile}`{guess}" if detected.profile else tied
    click.echo(f"{click.style(platform.node(), bold=True)}: {verdict}")
    for reason in detected.reasons:
        click.echo(f"  {plain(reason)}")
    for note in notes:
        click.echo(f"{click.style('note:', fg='yellow')} {plain(note)}")
    click.echo()
    click.echo("\n".join(_lines(rows(facts))))
    if detected.against:
        click.echo("\nleft out")
        shown = [(f"  {name}", why[0] if why else "") for name, why in detected.against.items()]
        click.echo(table(shown))
        click.echo("\n`fairlead site why-not NAME` lists the evidence for and against one")
    if not detected.profile:
        next_ = "name a profile with --site, or draft one: fairlead site detect --write"
        click.echo(f"\nnext: {next_}", err=True)


_WIDE = 110


def _lines(facts: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """What and value in columns; where it was seen behind it, or below where that would be too wide."""
    home = str(Path.home())
    last = ""
    for what, value, evidence in facts:
        where = re.sub(rf"(?<![\w/]){re.escape(home)}(?=/)", "~", plain(evidence))
        head = f"{'' if what == last else what:<15} "
        last = what
        if len(head) + len(value) + len(where) + 4 <= _WIDE:
            yield f"{head}{plain(value)}" + click.style(f"  ({where})", dim=True)
        else:
            yield head + plain(value)
            yield " " * 18 + click.style(f"({where})", dim=True)


def _written(write: str, facts: SiteFacts, detected: Detected, site: sites.Site | None) -> Path:
    from fairlead.detect.draft import draft, name_for

    path = Path(write or f"{name_for(facts)}.toml")
    if path.suffix != ".toml" or not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", path.stem):
        raise click.UsageError(
            f"--write {path}: a profile is NAME.toml, its name of lower case letters, digits and hyphens"
        )
    text = draft(path.stem, facts, detected, _base(site))
    if os.path.lexists(path):
        raise fail("site-draft-exists", path=path, path_2=path.with_stem(path.stem + "-new"))
    unwritable = os_error_as("site-draft-unwritable", path=path)
    with unwritable, atomic_write(path, "w") as stream:
        stream.write(text)
    return path


def _base(site: sites.Site | None) -> sites.Site | None:
    """The family that a new profile is laid over: a site's own, or the one detected."""
    if site is None or site.is_family:
        return site
    above = map(sites.load_site, site.lineage[1:])
    return next((ancestor for ancestor in above if ancestor.is_family), site)


@click.command("why-not")
@declared
def why_not_site(name: str = argument(metavar="SITE"), as_json: bool = JSON) -> None:
    """Show every clue of a profile, and which of them this machine has.

    \b
    fairlead site why-not perlmutter
    """
    from fairlead.detect.machine import MpiMachine
    from fairlead.site.match import Says, account, detect

    site = sites.load_site(name)
    machine = MpiMachine()
    evidence = account(site, machine)
    detected = detect(world=machine)
    own = detected.profile == site.name
    reasons = detected.against.get(site.name, ())
    document = {
        "site": site.name,
        "fits": own,
        "detected": detected.profile,
        "clues": [{"what": c.what, "says": c.says, "seen": c.seen} for c in evidence.clues],
        "expired": evidence.expired,
        "reasons": reasons,
    }
    guess = ", a guess" if detected.guess else ""
    text = f"{site.name}: this machine is taken for it ({detected.by}{guess})"
    if not own:
        taken = f"taken for {detected.profile or 'none'}"
        text = "\n  ".join([f"{site.name}: not this machine, which is {taken}", *reasons])
    shown = [("-" if c.says is Says.NOTHING else c.says, c.what, c.seen) for c in evidence.clues]
    if evidence.expired:
        shown.append((Says.AGAINST, "dates", evidence.expired))
    clues = table(shown, ("says", "clue", "here")) if shown else "it has no clues"
    answer(as_json, "site-why-not", document, f"{text}\n\n{clues}")


@click.command("check")
@declared
def check_site(
    name: str | None = argument(metavar="[SITE]", required=False),
    against: Path | None = option(
        "--against CAPTURE", "Check a capture instead of this machine.", type=FILE
    ),
    as_json: bool = JSON,
) -> ExitCode:
    """Check where a machine differs from its profile.

    SITE is a profile or a .toml file, by default this machine's. For a library that an update has
    moved, the new path is shown. Exits with 1 if a documented or tested value differs; guessed values
    may differ.

    \b
    fairlead site check
    fairlead site check ./mycluster.toml
    """
    from fairlead.base.timeboxed import PATIENCE_S
    from fairlead.detect import drift
    from fairlead.detect.gather import gather
    from fairlead.detect.machine import MpiMachine

    world: MpiMachine | None
    if against:
        capture = captures.read(against)
        site = sites.load_site(name) if name else capture.site
        facts, world, where = capture.facts, None, f"{capture.node}, captured {capture.taken}"
    else:
        site, _ = sites.resolve(name)
        world = MpiMachine(os.environ, patience_s=PATIENCE_S)
        facts, where = gather(world), platform.node()
    compared = drift.compare(site, facts, world)
    wrong = [c for c in compared if c.severity is Severity.ERROR]
    code = ExitCode.FAILED if wrong else ExitCode.DONE
    if as_json:
        head = {"site": site.name, "machine": where, "differs": len(wrong)}
        print_json("site-check", {**head, "values": compared})
        return code
    click.echo(f"{click.style(site.name, bold=True)} against {where}\n")
    shown = []
    for value in compared:
        evidence = value.seen
        if value.moved_to:
            evidence += f"; now {', '.join(value.moved_to)}"
        known = value.origin.status.value if value.origin else ""
        shown.append((value.state.value, value.key, value.wanted, known, evidence))
    click.echo(table(shown, ("state", "key", "the profile says", "known", "seen here")))
    counts = Counter(c.state for c in compared)
    words = {
        drift.State.OK: "ok",
        drift.State.DIFFERS: "differ",
        drift.State.UNSEEN: "cannot be seen here",
    }
    click.echo("\n" + ", ".join(f"{counts[state]} {word}" for state, word in words.items()))
    for value in wrong:
        click.echo("\n" + finding_lines(_drifted(value, site)), err=True)
    return code


def _drifted(value: Compared, site: sites.Site) -> Finding:
    origin = value.origin
    moved = {"moved_to": ", ".join(value.moved_to), "moved_to_0": (*value.moved_to, "")[0]}
    return finding_of(
        "site-drift-moved" if value.moved_to else "site-drift-correct",
        value_key=value.key,
        site_name=site.name,
        wanted=value.wanted,
        where=f"profile {origin.profile} ({origin.status}: {origin.source})" if origin else "",
        seen=value.seen,
        severity=value.severity,
        **moved,
    )
