"""``fairlead inspect``: what is inside an image."""

from __future__ import annotations

from collections.abc import Mapping

import click

from fairlead.base.serde import to_json
from fairlead.cli.screen import human_bytes, json_option, print_json, progress, table
from fairlead.elf.facts import Elf
from fairlead.elf.mpi_standard import standard_floor
from fairlead.image.open import Image, open_image
from fairlead.image.packages import frameworks
from fairlead.image.sbom_reader import materials_of, packages_of, tree_of

EPILOG = """\b
Examples:
  fairlead inspect tensorflow
  fairlead inspect ./someone-elses.sif --json
  fairlead inspect tensorflow --sbom > tensorflow.cdx.json
"""


@click.command(epilog=EPILOG, short_help="Show what is inside an image.")
@click.argument("image")
@click.option("--sbom", is_flag=True, help="Print the bill of materials: CycloneDX JSON.")
@json_option
def inspect(image: str, sbom: bool, as_json: bool) -> None:
    """Show what is inside an image: MPI, glibc, packages, programs that use MPI, origin, digests.

    An image built by fairlead carries its record and bill of materials, which are checked against
    its content. In any other image, packages are those that dpkg and Python list.
    """
    found = open_image(image, progress=progress(as_json))
    if sbom:
        click.echo(materials_of(found), nl=False)
        return
    tree = tree_of(found, progress=progress(as_json))
    packages = packages_of(found)
    if as_json:
        fields = {**to_json(found), "packages": to_json(packages), "tree_sha256": tree}
        fields.pop("installed")
        print_json("inspect", {"image": fields, "frameworks": frameworks(packages["wheel"])})
        return
    click.echo(_text(found, tree, packages))


def _text(image: Image, tree: str, packages: Mapping[str, Mapping[str, str]]) -> str:
    facts = image.facts
    named = frameworks(packages.get("wheel", {}))
    rows = [
        ("path", image.path),
        ("format", f"{image.format}, {human_bytes(image.bytes)}" if image.bytes else image.format),
        ("sha256", image.digest or "- (a folder)"),
        ("tree sha256", tree),
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
        ("frameworks", ", ".join(f"{k} {v}" for k, v in named.items()) or "none"),
        (
            "packages",
            f"{len(packages.get('deb', {}))} of Debian, {len(packages.get('wheel', {}))} of Python",
        ),
    ]
    if image.record:
        rows += _origin(image)
    parts = [table(rows)]
    mpis = [
        (m.title, m.family.value, f"MPI {m.level}", m.path, ", ".join(m.names)) for m in facts.mpis
    ]
    parts.append(
        click.style("MPI libraries", bold=True) + "\n" + (table(mpis, indent="  ") or "  none")
    )
    users = [
        (
            e.path,
            ", ".join(n for n in e.needed if "mpi" in n) or "static",
            _needs(e),
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


def _needs(elf: Elf) -> str:
    floor = standard_floor(elf.mpi_imports)
    return f"calls up to MPI {floor}" if floor else ""


def _origin(image: Image) -> list[tuple[str, str]]:
    record = image.record
    rows = [
        ("recipe", str(record.get("recipe", "-"))),
        ("lock sha256", str(record.get("lock_sha256", "-"))),
        ("fairlead", str(record.get("fairlead_version", "-"))),
    ]
    sbom = record.get("sbom")
    if isinstance(sbom, dict):
        rows.append(("SBOM", f"{sbom.get('format')}, {sbom.get('components')} components"))
    return rows
