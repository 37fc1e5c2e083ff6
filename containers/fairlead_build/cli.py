"""The verbs ``fairlead recipe`` and ``fairlead build``: the one module here that prints."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fairlead.cli.screen import (
    human_bytes,
    json_option,
    print_findings,
    print_json,
    progress,
    table,
)
from fairlead.findings import FairleadError
from fairlead_build import recipe as recipes
from fairlead_build.lock import Lock, Package, load_lock
from fairlead_build.ownwheel import runtime_requirements


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def recipe() -> None:
    """Recipes: list, show, check, lock.

    A RECIPE is the name of a bundled recipe (`fairlead recipe list`) or a folder with a recipe.toml.

    \b
    fairlead recipe list
    fairlead recipe check ./my-image
    fairlead recipe lock ./my-image       resolve it against today's indexes
    """


@recipe.command("list")
@json_option
def list_(as_json: bool) -> None:
    """The bundled recipes."""
    found = [recipes.load_recipe(name) for name in recipes.names()]
    if as_json:
        rows = [
            {
                "name": r.name,
                "summary": r.recipe.recipe.summary,
                "path": str(r.folder),
                "locked": r.lock_path.is_file(),
            }
            for r in found
        ]
        print_json("recipe-list", {"recipes": rows})
        return
    click.echo(table([(r.name, r.recipe.recipe.summary) for r in found], ("RECIPE", "SUMMARY")))


@recipe.command()
@click.argument("name", metavar="RECIPE")
@json_option
def show(name: str, as_json: bool) -> None:
    """A recipe with its defaults filled in, and a summary of its lock.

    \b
    fairlead recipe show tensorflow
    """
    loaded = recipes.load_recipe(name)
    lock = _lock_of(loaded) if loaded.lock_path.is_file() else None
    told = loaded.recipe.model_dump(mode="json", exclude_none=True)
    if as_json:
        summary = _lock_summary(lock) if lock else None
        print_json(
            "recipe",
            {"path": str(loaded.folder), "sha256": loaded.digest, "recipe": told, "lock": summary},
        )
        return
    click.echo(click.style(str(loaded.folder / "recipe.toml"), bold=True))
    for title, keys in told.items():
        if keys:
            click.echo(f"\n[{title}]")
            click.echo(table([(key, _shown(value)) for key, value in keys.items()]))
    click.echo(click.style(f"\n{loaded.lock_path}", bold=True))
    if lock is None:
        click.echo(f"not locked yet; next: fairlead recipe lock {name}")
        return
    click.echo(table([(k, _shown(v)) for k, v in _lock_summary(lock).items()]))
    asked = {re.split(r"[^A-Za-z0-9._-]", text)[0].lower() for text in loaded.recipe.packages.pip}
    rows = [
        (w.name, w.version, w.role)
        for w in lock.wheel
        if w.name.lower() in asked or w.role == "mpi"
    ]
    if rows:
        click.echo("\n" + table(rows, ("ASKED FOR", "VERSION", "PREFIX")))


@recipe.command()
@click.argument("name", metavar="RECIPE")
@json_option
def check(name: str, as_json: bool) -> None:
    """Finds every mistake in a recipe, and whether its lock is up to date.

    \b
    fairlead recipe check ./my-image
    """
    loaded = recipes.load_recipe(name)
    lock = _lock_of(loaded)
    if as_json:
        print_json(
            "recipe-check", {"recipe": loaded.name, "path": str(loaded.folder), "findings": []}
        )
        return
    click.echo(
        f"ok: recipe `{loaded.name}` is sound, and its lock matches it "
        f"({len(lock.deb)} Debian packages, {len(lock.wheel)} wheels)"
    )


@recipe.command("lock")
@click.argument("name", metavar="RECIPE")
@click.option("--dry-run", is_flag=True, help="Say what would be resolved; write nothing.")
@json_option
def lock_command(name: str, dry_run: bool, as_json: bool) -> None:
    """Resolves a recipe against today's indexes, and writes its lock.toml.

    \b
    fairlead recipe lock tensorflow
    """
    from fairlead_build.lock import inputs_of
    from fairlead_build.resolve import lock_recipe
    from fairlead_build.store import Cache

    loaded = recipes.load_recipe(name)
    if dry_run:
        wanted = inputs_of(loaded.recipe, runtime_requirements() if loaded.recipe.python else ())
        if as_json:
            print_json(
                "recipe-lock",
                {"dry_run": True, "path": str(loaded.lock_path), "inputs": wanted.model_dump()},
            )
        else:
            click.echo(f"would resolve, and write to {loaded.lock_path}:")
            click.echo(table([(k, _shown(v)) for k, v in wanted.model_dump(mode="json").items()]))
        return
    before = {(p.name, p.version) for p in _packages(loaded)}
    lock = lock_recipe(loaded, progress(as_json), Cache.default())
    after = {(p.name, p.version) for p in lock.packages}
    if as_json:
        payload = {"dry_run": False, "path": str(loaded.lock_path), "lock": _lock_summary(lock)}
        print_json(
            "recipe-lock",
            {**payload, "added": sorted(after - before), "removed": sorted(before - after)},
        )
        return
    for sign, rows in (("-", before - after), ("+", after - before)):
        for package, version in sorted(rows) if before else ():
            click.echo(f"{sign} {package} {version}")
    click.echo(
        f"{loaded.lock_path}: {len(lock.deb)} Debian packages, {len(lock.wheel)} wheels, "
        f"{human_bytes(lock.download_bytes)} to download"
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", metavar="RECIPE")
@click.option(
    "--format", "formats", default="sif", metavar="F[,F]", help="sif, squashfs. [default: sif]"
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Also give the image this name, or put it there.",
)
@click.option("--dry-run", is_flag=True, help="Print the stages and what is cached; make nothing.")
@json_option
def build(name: str, formats: str, output: Path | None, dry_run: bool, as_json: bool) -> None:
    """Build an image from a recipe's lock.

    The image goes to the cache, where `fairlead run RECIPE` finds it. Interrupted, the same command
    goes on; unchanged, it takes no time.

    \b
    fairlead build tensorflow
    fairlead build ./my-image -o /scratch/images
    fairlead build mpi-base --format sif,squashfs --dry-run
    """
    from fairlead_build.build import build as make

    chosen = [part.strip() for part in formats.split(",")]
    result = make(name, formats=chosen, progress=progress(as_json), output=output, dry_run=dry_run)
    if as_json:
        payload: dict[str, Any] = {
            "recipe": result.recipe,
            "key": result.key,
            "dry_run": dry_run,
            "cached": result.cached,
            "image": asdict(result.entry) if result.entry else None,
            "outputs": [str(path) for path in result.outputs],
            "stages": [asdict(stage) for stage in result.stages],
            "findings": [finding.to_json() for finding in result.warnings],
        }
        print_json("build", payload)
        return
    if result.warnings:
        print_findings(result.warnings)
    if dry_run:
        rows = [(s.name, "cached" if s.cached else "to do", s.detail) for s in result.stages]
        click.echo(table(rows, ("STAGE", "STATE", "WHAT")))
        return
    assert result.entry is not None
    for path in result.outputs:
        click.echo(str(path))
    state = "unchanged" if result.cached else "built"
    click.echo(
        f"{state}: {result.recipe}, {human_bytes(result.entry.bytes)}, squashfs sha256 {result.entry.squashfs_sha256}",
        err=True,
    )


def _lock_of(loaded: recipes.LoadedRecipe) -> Lock:
    return load_lock(loaded, runtime_requirements() if loaded.recipe.python else ())[0]


def _packages(loaded: recipes.LoadedRecipe) -> list[Package]:
    """The packages of the lock as it is, stale or not; none when it cannot be read."""
    from fairlead.tomlfile import load

    try:
        old = load(loaded.lock_path, Lock, "fairlead recipe lock")
    except FairleadError:
        return []
    return list(old.packages)


def _lock_summary(lock: Lock) -> dict[str, Any]:
    return {
        "architecture": lock.architecture,
        "inputs_sha256": lock.inputs_sha256,
        "source_date_epoch": lock.source_date_epoch,
        "debs": len(lock.deb),
        "wheels": len(lock.wheel),
        "download_bytes": lock.download_bytes,
        "indexes": sorted({p.index for p in lock.packages}),
        "tools": dict(lock.tools),
    }


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items()) or "none"
    return str(value)
