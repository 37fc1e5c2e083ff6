"""``fairlead inspect``: what is inside an image."""

from __future__ import annotations

from collections.abc import Mapping

import click

from fairlead.base.progress import human_bytes
from fairlead.base.serde import to_json
from fairlead.cli.declare import JSON, declared, option
from fairlead.cli.screen import echo, print_json, progress, table
from fairlead.elf.facts import Elf
from fairlead.elf.mpi_standard import standard_floor
from fairlead.elf.mpi_symbols import asked_by
from fairlead.image.open import Image, open_image
from fairlead.image.packages import frameworks
from fairlead.image.sbom_reader import materials_of, tree_of

EPILOG = """\b
Examples:
  fairlead inspect tensorflow
  fairlead inspect ./someone-elses.sif --json
  fairlead inspect tensorflow --sbom > tensorflow.cdx.json
"""


@click.command(epilog=EPILOG)
@declared
def inspect(
    image: str,
    sbom: bool = option("--sbom", "Print the bill of materials: CycloneDX JSON."),
    as_json: bool = JSON,
) -> None:
    """Show what is inside an image: MPI, glibc, packages, programs that use MPI, origin, digests.

    An image built by fairlead carries its record and bill of materials, which are checked against
    its content. In any other image, packages are those that dpkg and Python list.
    """
    bars = progress(as_json)
    opened = open_image(image, progress=bars)
    if sbom:
        click.echo(materials_of(opened), nl=False)
        return
    tree, packages = tree_of(opened, progress=bars), opened.packages
    if as_json:
        fields = {**to_json(opened), "packages": to_json(packages), "tree_sha256": tree}
        fields.pop("installed")
        print_json("inspect", {"image": fields, "frameworks": frameworks(packages["wheel"])})
        return
    echo(_text(opened, tree, packages))


def _text(image: Image, tree: str, packages: Mapping[str, Mapping[str, str]]) -> str:
    facts = image.facts
    wheels, looked = packages.get("wheel", {}), "found by looking inside"
    glibc = f"{facts.glibc}; its programs need up to {facts.glibc_floor or '-'}"
    named = frameworks(wheels)
    rows = [
        ("path", image.path),
        ("format", f"{image.format}, {human_bytes(image.bytes)}" if image.bytes else image.format),
        ("sha256", image.digest or "- (a folder)"),
        ("tree sha256", tree),
        ("facts", looked if image.looked else "its own statements, unverified"),
        ("system", ", ".join(filter(None, (facts.os or "unknown", facts.arch)))),
        ("glibc", glibc if facts.glibc else "none"),
        ("libstdc++", f"GLIBCXX_{facts.libstdcxx}" if facts.libstdcxx else "none"),
        ("Python", facts.python or "none"),
        ("frameworks", ", ".join(f"{k} {v}" for k, v in named.items()) or "none"),
        ("packages", f"{len(packages.get('deb', {}))} of Debian, {len(wheels)} of Python"),
    ]
    if image.record:
        rows += _origin(image)
    mpis = [
        (m.title, m.family.value, f"MPI {m.level}", m.path, ", ".join(m.names)) for m in facts.mpis
    ]
    users = [
        (
            e.path,
            ", ".join(n for n in e.needed if "mpi" in n or n in asked_by(facts, e)) or _inside(e),
            _needs(e),
            "DT_RPATH" if e.rpath and not e.runpath else "",
        )
        for e in facts.consumers
    ]
    parts = {
        "MPI libraries": table(mpis, indent="  ") or "  none",
        "Who uses MPI": table(users, indent="  ") or "  none",
        "Environment": table(sorted(image.env.items()), indent="  "),
    }
    texts = [f"{click.style(title, bold=True)}\n{text}" for title, text in parts.items() if text]
    return "\n\n".join([table(rows), *texts])


def _inside(elf: Elf) -> str:
    return "static" if elf.holds or elf.mpi_exports else "what it opens"


def _needs(elf: Elf) -> str:
    floor = standard_floor(elf.mpi_imports)
    return f"calls up to MPI {floor}" if floor else ""


def _origin(image: Image) -> list[tuple[str, str]]:
    record = image.record
    names = {"recipe": "recipe", "lock sha256": "lock_sha256", "fairlead": "fairlead_version"}
    rows = [(title, str(record.get(key, "-"))) for title, key in names.items()]
    if record.get("wheel_sha256") == "":
        rows[-1] = (
            "fairlead",
            f"none inside: built by {rows[-1][1]}, whose runtime needs Python 3.11",
        )
    sbom = record.get("sbom")
    if isinstance(sbom, dict):
        rows.append(("SBOM", f"{sbom.get('format')}, {sbom.get('components')} components"))
    return rows
