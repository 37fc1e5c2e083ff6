"""``fairlead inspect``: what is inside an image."""

from __future__ import annotations

import click

from fairlead.cli.screen import human_bytes, json_option, print_json, progress, table
from fairlead.image import Image, open_image
from fairlead.serial import to_json

EPILOG = """\b
Examples:
  fairlead inspect tensorflow
  fairlead inspect ./someone-elses.sif --json
"""


@click.command(epilog=EPILOG, short_help="What is inside an image.")
@click.argument("image")
@json_option
def inspect(image: str, as_json: bool) -> None:
    """What is inside an image: its MPI, glibc, who uses MPI, where it came from, its digest.

    An image that fairlead built carries its own record, checked against its content; any other is
    looked into.
    """
    found = open_image(image, progress=progress(as_json))
    if as_json:
        print_json("inspect", {"image": to_json(found)})
        return
    click.echo(_text(found))


def _text(image: Image) -> str:
    facts = image.facts
    rows = [
        ("path", image.path),
        ("format", f"{image.format}, {human_bytes(image.bytes)}" if image.bytes else image.format),
        ("sha256", image.digest or "- (a folder)"),
        (
            "facts",
            "found by looking inside"
            if image.looked
            else "from its record, checked against its sha256",
        ),
        ("system", f"{facts.os}, {facts.arch}"),
        ("glibc", f"{facts.glibc}; its programs need up to {facts.glibc_floor or '-'}"),
        ("libstdc++", f"GLIBCXX_{facts.libstdcxx}" if facts.libstdcxx else "none"),
        ("Python", facts.python or "none"),
    ]
    if image.record:
        rows += [
            ("recipe", str(image.record.get("recipe", "-"))),
            ("fairlead", str(image.record.get("fairlead_version", "-"))),
        ]
    parts = [table(rows)]
    mpis = [(m.title, f"MPI {m.level}", m.path, ", ".join(m.names)) for m in facts.mpis]
    parts.append(
        click.style("MPI libraries", bold=True) + "\n" + (table(mpis, indent="  ") or "  none")
    )
    users = [
        (
            e.path,
            ", ".join(n for n in e.needed if "mpi" in n) or "static",
            "DT_RPATH" if e.rpath and not e.runpath else "",
        )
        for e in facts.consumers
    ]
    parts.append(
        click.style("Who uses MPI", bold=True) + "\n" + (table(users, indent="  ") or "  nobody")
    )
    if image.env:
        parts.append(
            click.style("Environment", bold=True)
            + "\n"
            + table(sorted(image.env.items()), indent="  ")
        )
    return "\n\n".join(parts)
