"""The verb ``fairlead recipe``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fairlead.base.errors import ExitCode, FairleadError, Severity
from fairlead.base.progress import human_bytes
from fairlead.cli.screen import (
    json_option,
    print_findings,
    print_json,
    progress,
    show_schema,
    table,
)
from fairlead_build.recipe import load as recipes
from fairlead_build.recipe.inherit import bundled_names
from fairlead_build.recipe.lock import Lock, Package, load_lock, why_unlocked
from fairlead_build.tree.wheel import runtime_requirements


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def recipe() -> None:
    """Manage recipes: list, show, check, lock, render, import.

    A RECIPE is the name of a bundled recipe (`fairlead recipe list`) or a folder with a recipe.toml;
    append `:VARIANT` for one of its variants.

    \b
    fairlead recipe list
    fairlead recipe check ./my-image
    fairlead recipe lock ./my-image       resolve it against today's indexes
    """


@recipe.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the bundled recipes and their variants."""
    loaded = [recipes.load_recipe(a) for name in bundled_names() for a in recipes.addresses(name)]
    rows = [
        {
            "name": r.name,
            "summary": r.recipe.recipe.summary,
            "path": str(r.folder),
            "accelerator": r.recipe.recipe.accelerator,
            "locked": r.lock_path.is_file(),
        }
        for r in loaded
    ]
    if as_json:
        print_json("recipe-list", {"recipes": rows})
    else:
        click.echo(
            table([(str(r["name"]), str(r["summary"])) for r in rows], ("RECIPE", "SUMMARY"))
        )


@recipe.command()
@click.argument("name", metavar="RECIPE")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show a recipe with its defaults filled in, and a summary of its lock.

    \b
    fairlead recipe show tensorflow
    """
    loaded = recipes.load_recipe(name)
    lock = _lock_of(loaded) if loaded.lock_path.is_file() else None
    tables = loaded.recipe.model_dump(mode="json", exclude_none=True)
    if as_json:
        head = {"path": str(loaded.folder), "sha256": loaded.digest, "recipe": tables}
        print_json("recipe", {**head, "lock": _lock_summary(lock) if lock else None})
        return
    click.echo(click.style(str(loaded.folder / "recipe.toml"), bold=True))
    for title, content in tables.items():
        several = isinstance(content, list)
        for keys in filter(None, content if several else [content]):
            click.echo(f"\n[[{title}]]" if several else f"\n[{title}]")
            click.echo(table([(key, _shown(value)) for key, value in keys.items()]))
    click.echo(click.style(f"\n{loaded.lock_path}", bold=True))
    if lock is None:
        click.echo(f"not locked yet; next: fairlead recipe lock {name}")
        return
    click.echo(table([(k, _shown(v)) for k, v in _lock_summary(lock).items()]))
    asked = {re.split(r"[^A-Za-z0-9._-]", text)[0].lower() for text in loaded.recipe.packages.pip}
    wheels = [w for w in lock.wheel if w.name.lower() in asked or w.role == "mpi"]
    if rows := [(w.name, w.version, w.role) for w in wheels]:
        click.echo("\n" + table(rows, ("ASKED FOR", "VERSION", "PREFIX")))


@recipe.command()
@click.argument("name", metavar="RECIPE")
@json_option
def requirements(name: str, as_json: bool) -> None:
    """Print the locked Python packages as pip reads them, with hashes: the same without a container.

    What a native Python is made of, that `fairlead validate --native` compares an image with.

    \b
    fairlead recipe requirements tensorflow > requirements.txt
    python3.11 -m venv native && native/bin/pip install --no-deps --require-hashes -r requirements.txt
    """
    lock = _lock_of(recipes.load_recipe(name))
    wheels = [w for w in lock.wheel if w.role == "python"]
    if as_json:
        rows = [{"name": w.name, "version": w.version, "sha256": w.sha256} for w in wheels]
        print_json("recipe-requirements", {"python": lock.inputs.python, "packages": rows})
        return
    click.echo(
        f"# of the lock of {lock.recipe}, for Python {lock.inputs.python} on {lock.architecture}"
    )
    for w in wheels:
        click.echo(w.pin)


@recipe.command()
@click.argument("name", metavar="RECIPE")
@json_option
def check(name: str, as_json: bool) -> None:
    """Find every mistake in a recipe, and whether its lock is up to date.

    A sound recipe without a lock passes; it says why there may be none.

    \b
    fairlead recipe check ./my-image
    """
    loaded = recipes.load_recipe(name)
    lock = _lock_of(loaded) if loaded.lock_path.is_file() else None
    why = "" if lock else why_unlocked(loaded)
    if as_json:
        head = {"recipe": loaded.name, "path": str(loaded.folder), "locked": lock is not None}
        print_json("recipe-check", {**head, "not_locked_because": why, "findings": []})
        return
    sound = f"ok: recipe `{loaded.name}` is sound"
    if lock is None:
        click.echo(f"{sound}\n    not locked, because {why}")
        click.echo(f"next: fairlead recipe lock {loaded.given}")
        return
    packages = f"{len(lock.deb)} Debian packages, {len(lock.wheel)} wheels"
    click.echo(f"{sound}, and its lock matches it ({packages})")


@recipe.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--from",
    "parent",
    default="mpi-base",
    metavar="RECIPE",
    help="The recipe that it extends. [default: mpi-base]",
)
@click.option("--dry-run", is_flag=True, help="Print the recipe; write nothing.")
@json_option
def new(name: str, parent: str, dry_run: bool, as_json: bool) -> None:
    """Write a small recipe that extends another, to start from.

    NAME is the folder to create; its last part names the recipe.

    \b
    fairlead recipe new my-image
    fairlead recipe new recipes/hep --from tensorflow
    """
    from fairlead_build.recipe import new as newrecipe

    folder, text = newrecipe.plan(name, parent)
    path = folder / "recipe.toml"
    if not dry_run:
        newrecipe.write(folder, text)
    if as_json:
        print_json("recipe-new", {"dry_run": dry_run, "path": str(path), "text": text})
        return
    if dry_run:
        click.echo(text, nl=False)
        return
    shown = recipes.shown_folder(folder)
    click.echo(f"{path}: edit it, then")
    click.echo(f"  fairlead recipe lock {shown}\n  fairlead build {shown}")


@recipe.command()
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write it there."
)
@json_option
def schema(output: Path | None, as_json: bool) -> None:
    """Print the JSON Schema of recipe.toml, for an editor.

    A line `#:schema FILE` at the top of a recipe names it; then the editor completes keys.

    \b
    fairlead recipe schema -o recipe.schema.json
    """
    from fairlead.base.json_schema import schema_of, schema_text
    from fairlead_build.recipe.model import Written

    show_schema("recipe-schema", schema_text(schema_of(Written)), output, as_json)


@recipe.command("lock")
@click.argument("name", metavar="[RECIPE]", required=False)
@click.option(
    "--upgrade",
    multiple=True,
    metavar="PACKAGE",
    help="Upgrade this package and what it requires; keep all others. Repeatable.",
)
@click.option(
    "--archive",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also store every file of the lock there; $FAIRLEAD_ARCHIVE names an archive to read from.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be resolved; write nothing.")
@click.option("--tools", is_flag=True, help="Lock the tools that write images, not the packages.")
@json_option
def lock_command(
    name: str | None,
    upgrade: tuple[str, ...],
    archive: Path | None,
    dry_run: bool,
    tools: bool,
    as_json: bool,
) -> None:
    """Resolve a recipe against today's indexes, and write its lock.toml.

    With --tools, the recipe's packages stay as they are, and its lock takes the tools of this
    fairlead; without a RECIPE, fairlead's own tool lock is resolved again.

    \b
    fairlead recipe lock tensorflow
    fairlead recipe lock tensorflow --upgrade libssl3 --upgrade keras
    fairlead recipe lock ./my-image --archive /project/archive
    fairlead recipe lock --tools tensorflow
    """
    if tools:
        return _lock_tools(name, dry_run, as_json)
    if name is None:
        raise click.UsageError("Missing argument 'RECIPE'.")
    from fairlead_build.cache.store import Cache
    from fairlead_build.recipe.lock import inputs_of
    from fairlead_build.resolving import check_upgrade, lock_recipe, old_lock

    loaded = recipes.load_recipe(name)
    if dry_run:
        check_upgrade(loaded, upgrade)
        wanted = inputs_of(loaded.recipe, runtime_requirements() if loaded.recipe.python else ())
        if as_json:
            head = {"dry_run": True, "path": str(loaded.lock_path)}
            print_json("recipe-lock", {**head, "inputs": wanted.model_dump()})
        else:
            click.echo(f"would resolve, and write to {loaded.lock_path}:")
            click.echo(table([(k, _shown(v)) for k, v in wanted.model_dump(mode="json").items()]))
        return
    known = old_lock(loaded)
    before = _versions(known.packages if known else ())
    cache = Cache.default(archive if archive is not None and archive.is_dir() else None)
    lock = lock_recipe(loaded, progress(as_json), cache, upgrade=upgrade, keep=archive)
    after = _versions(lock.packages)
    moved = [
        (package, before.get(package, ""), after.get(package, ""))
        for package in sorted(before.keys() | after.keys())
        if before.get(package) != after.get(package)
    ]
    if as_json:
        payload = {"dry_run": False, "path": str(loaded.lock_path), "lock": _lock_summary(lock)}
        moves = [{"package": p, "before": a or None, "after": b or None} for p, a, b in moved]
        print_json("recipe-lock", {**payload, "moves": moves})
        return
    for package, old, new in moved if before else ():
        added_or_gone = f"+ {package} {new}" if new else f"- {package} {old}"
        click.echo(f"  {package} {old} -> {new}" if old and new else added_or_gone)
    if before and not moved:
        click.echo("nothing moved")
    click.echo(
        f"{loaded.lock_path}: {len(lock.deb)} Debian packages, {len(lock.wheel)} wheels, "
        f"{human_bytes(lock.download_bytes)} to download"
    )


def _lock_tools(name: str | None, dry_run: bool, as_json: bool) -> None:
    from fairlead_build.cache.store import Cache
    from fairlead_build.recipe.lock import render as lock_text
    from fairlead_build.recipe.lock import write_text
    from fairlead_build.tools import tool_tree

    if name is None:
        path, packages = tool_tree.LOCK, tool_tree.tool_lock().packages
        before = after = tool_tree.versions()
        if not dry_run:
            tool_tree.relock(progress(as_json), Cache.default())
            after = tool_tree.versions()
    else:
        loaded = recipes.load_recipe(name)
        path, lock = loaded.lock_path, _lock_of(loaded)
        before, after = dict(lock.tools), tool_tree.versions(lock.architecture)
        packages = tuple(after)
        if not dry_run:
            write_text(path, lock_text(lock.model_copy(update={"tools": after})))
    if as_json:
        names = {"dry_run": dry_run, "path": str(path), "tools": list(packages)}
        print_json("recipe-lock-tools", {**names, "before": before, "after": after})
        return
    if dry_run:
        click.echo(f"would lock {', '.join(packages)}, and write to {path}")
        return
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            click.echo(f"{key}: {before.get(key, 'none')} -> {after.get(key, 'none')}")
    click.echo(f"{path}: tool tree {after['tree'][:12]}{'' if before != after else ', unchanged'}")


@recipe.command()
@click.argument("name", metavar="RECIPE")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder to write; containers/rendered/NAME of a checkout, or rendered/NAME, otherwise.",
)
@click.option("--dry-run", is_flag=True, help="Show which files would change; write nothing.")
@json_option
def render(name: str, output: Path | None, dry_run: bool, as_json: bool) -> None:
    """Write a recipe as a Containerfile and a Singularity.def, for people without fairlead.

    Both install exactly the packages of the lock. Base image, mirror and Python index are arguments
    of the build; everything else they need is in the same folder.

    \b
    fairlead recipe render mpi-base -o for-colleagues
    podman build -t mpi-base for-colleagues
    """
    from fairlead_build.render import render_recipe

    result = render_recipe(name, output, dry_run=dry_run)
    if as_json:
        head = {"recipe": result.recipe, "folder": str(result.folder), "pinned": result.pinned}
        files = [asdict(file) for file in result.files]
        print_json("recipe-render", {**head, "dry_run": dry_run, "files": files})
        return
    for file in result.files:
        click.echo(f"{file.change:<9}  {result.folder / file.path}")
    if not result.pinned:
        click.echo("versions are not pinned: the recipe has no lock", err=True)


@recipe.command("import")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The recipe's folder, which must be new. [default: the file's name]",
)
@click.option("--allow-loss", is_flag=True, help="Write the recipe even if parts are lost.")
@click.option("--dry-run", is_flag=True, help="Show the recipe and what is lost; write nothing.")
@json_option
def import_(
    file: Path, output: Path | None, allow_loss: bool, dry_run: bool, as_json: bool
) -> int | None:
    """Convert a Containerfile or a Singularity.def to a recipe, and list what was lost.

    A recipe says what is in an image; these files say what to run. Whatever may not carry over
    exactly is listed with its line, the reason, and what to do instead. Then nothing is written
    and the exit code is 2, unless you pass --allow-loss.

    \b
    fairlead recipe import hep.def --dry-run
    fairlead recipe import hep.def -o hep --allow-loss
    """
    from fairlead_build.importing.folder import import_file, lossy

    result = import_file(file, output, allow_loss=allow_loss, dry_run=dry_run)
    severity = Severity.WARNING if allow_loss else Severity.ERROR
    findings = [loss.finding(severity) for loss in result.losses]
    refused = bool(findings) and not allow_loss
    if refused and not dry_run:
        raise FairleadError([*findings, lossy(file)], ExitCode.USAGE)
    if as_json:
        head = {"name": result.name, "folder": str(result.folder), "written": result.written}
        losses = [asdict(loss) for loss in result.losses]
        made = {**head, "recipe": result.recipe, "files": result.files, "losses": losses}
        print_json("recipe-import", made)
        return int(ExitCode.USAGE) if refused else None
    if dry_run:
        click.echo(result.recipe, nl=False)
    if findings:
        print_findings(findings)
    if result.written:
        click.echo(str(result.folder / "recipe.toml"))
        click.echo(f"next: fairlead recipe lock {result.folder}", err=True)
    return int(ExitCode.USAGE) if refused else None


# --- what several of them show ----------------------------------------------------------------


def _versions(packages: Iterable[Package]) -> dict[str, str]:
    """What a lock has, by name; a package may be there in several roles."""
    versions_of: dict[str, set[str]] = {}
    for package in packages:
        versions_of.setdefault(package.name, set()).add(package.version)
    return {name: ", ".join(sorted(versions)) for name, versions in versions_of.items()}


def _lock_of(loaded: recipes.LoadedRecipe) -> Lock:
    return load_lock(loaded, runtime_requirements() if loaded.recipe.python else ())[0]


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
