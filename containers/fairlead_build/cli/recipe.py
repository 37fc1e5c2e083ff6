"""The verb ``fairlead recipe``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fairlead.base.errors import ExitCode, FairleadError, Severity
from fairlead.base.progress import human_bytes
from fairlead.cli.declare import FILE, FOLDER, JSON, PATH, argument, declared, option
from fairlead.cli.group import Group
from fairlead.cli.screen import (
    answer,
    echo,
    print_findings,
    print_json,
    progress,
    show_schema,
    table,
)
from fairlead_build.recipe import load as recipes
from fairlead_build.recipe.inherit import bundled_names
from fairlead_build.recipe.lock import Lock, Package, load_lock, why_unlocked
from fairlead_build.tree.wheel import requirements_in

RECIPE = argument(metavar="RECIPE")


@click.group(cls=Group)
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
@declared
def list_(as_json: bool = JSON) -> None:
    """List the bundled recipes and their variants.

    \b
    fairlead recipe list
    """
    loaded = [recipes.load_recipe(a) for name in bundled_names() for a in recipes.addresses(name)]
    rows = [
        {
            "name": r.name,
            "summary": r.recipe.recipe.summary,
            "path": r.folder,
            "accelerator": r.recipe.recipe.accelerator,
            "locked": r.lock_path.is_file(),
        }
        for r in loaded
    ]
    text = table([(r["name"], r["summary"]) for r in rows], ("RECIPE", "SUMMARY"))
    answer(as_json, "recipe-list", {"recipes": rows}, text)


@recipe.command()
@declared
def show(name: str = RECIPE, as_json: bool = JSON) -> None:
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
    echo(click.style(str(loaded.folder / "recipe.toml"), bold=True))
    for title, content in tables.items():
        several = isinstance(content, list)
        for keys in filter(None, content if several else [content]):
            echo(f"\n[[{title}]]" if several else f"\n[{title}]")
            echo(_rows(keys))
    echo(click.style(f"\n{loaded.lock_path}", bold=True))
    if lock is None:
        echo(f"not locked yet; next: fairlead recipe lock {name}")
        return
    echo(_rows(_lock_summary(lock)))
    asked = {re.split(r"[^A-Za-z0-9._-]", text)[0].lower() for text in loaded.recipe.packages.pip}
    wheels = [w for w in lock.wheel if w.name.lower() in asked or w.role == "mpi"]
    if rows := [(w.name, w.version, w.role) for w in wheels]:
        echo("\n" + table(rows, ("ASKED FOR", "VERSION", "PREFIX")))


@recipe.command()
@declared
def requirements(name: str = RECIPE, as_json: bool = JSON) -> None:
    """Print the locked Python packages as pip reads them, with hashes: the same without a container.

    What a native Python is made of, that `fairlead validate --native` compares an image with.

    \b
    fairlead recipe requirements tensorflow > requirements.txt
    python3.11 -m venv native && native/bin/pip install --no-deps --require-hashes -r requirements.txt
    """
    lock = _lock_of(recipes.load_recipe(name))
    wheels = [w for w in lock.wheel if w.role == "python"]
    python = lock.inputs.python
    rows = [{"name": w.name, "version": w.version, "sha256": w.sha256} for w in wheels]
    head = f"# of the lock of {lock.recipe}, for Python {python} on {lock.architecture}"
    text = "\n".join([head, *(w.pin for w in wheels)])
    answer(as_json, "recipe-requirements", {"python": python, "packages": rows}, text)


@recipe.command()
@declared
def check(name: str = RECIPE, as_json: bool = JSON) -> None:
    """Find every mistake in a recipe, and whether its lock is up to date.

    A sound recipe without a lock passes; it says why there may be none.

    \b
    fairlead recipe check ./my-image
    """
    loaded = recipes.load_recipe(name)
    lock = _lock_of(loaded) if loaded.lock_path.is_file() else None
    why, text = "", f"ok: recipe `{loaded.name}` is sound"
    if lock is None:
        why = why_unlocked(loaded)
        text += f"\n    not locked, because {why}\nnext: fairlead recipe lock {loaded.given}"
    else:
        text += f", and its lock matches it ({_sum(lock)})"
    head = {"recipe": loaded.name, "path": loaded.folder, "locked": lock is not None}
    document = {**head, "not_locked_because": why, "findings": []}
    answer(as_json, "recipe-check", document, text)


@recipe.command()
@declared
def new(
    name: str,
    parent: str = option(
        "--from RECIPE",
        "The recipe that it extends. [default: mpi-base]",
        default="mpi-base",
        show_default=False,
    ),
    dry_run: bool = option("--dry-run", "Print the recipe; write nothing."),
    as_json: bool = JSON,
) -> None:
    """Write a small recipe that extends another, to start from.

    NAME is the folder to create; its last part names the recipe.

    \b
    fairlead recipe new my-image
    fairlead recipe new recipes/hep --from tensorflow
    """
    from fairlead_build.recipe import new as newrecipe

    folder, text = newrecipe.plan(name, parent)
    path, shown = folder / "recipe.toml", recipes.shown_folder(folder)
    if not dry_run:
        newrecipe.write(folder, text)
    then = f"{path}: edit it, then\n  fairlead recipe lock {shown}\n  fairlead build {shown}"
    document = {"dry_run": dry_run, "path": path, "text": text}
    answer(as_json, "recipe-new", document, text if dry_run else then)


@recipe.command()
@declared
def schema(
    output: Path | None = option("-o --output", "Write it there.", type=FILE), as_json: bool = JSON
) -> None:
    """Print the JSON Schema of recipe.toml, for an editor.

    A line `#:schema FILE` at the top of a recipe names it; then the editor completes keys.

    \b
    fairlead recipe schema -o recipe.schema.json
    """
    from fairlead.base.json_schema import schema_of, schema_text
    from fairlead_build.recipe.model import Written

    show_schema("recipe-schema", schema_text(schema_of(Written)), output, as_json)


@recipe.command("lock")
@declared
def lock_command(
    name: str | None = argument(metavar="[RECIPE]", required=False),
    upgrade: tuple[str, ...] = option(
        "--upgrade PACKAGE",
        "Upgrade this package and what it requires; keep all others. Repeatable.",
    ),
    archive: Path | None = option(
        "--archive",
        "Also store every file of the lock there. [default: $FAIRLEAD_ARCHIVE]",
        type=FOLDER,
    ),
    dry_run: bool = option("--dry-run", "Show what would be resolved; write nothing."),
    tools: bool = option("--tools", "Lock the tools that write images, not the packages."),
    as_json: bool = JSON,
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
    from fairlead_build.resolve.archive import kept_in
    from fairlead_build.resolving import check_upgrade, lock_recipe, old_lock

    loaded = recipes.load_recipe(name)
    if dry_run:
        check_upgrade(loaded, upgrade)
        wanted = inputs_of(loaded.recipe, requirements_in(loaded.recipe))
        document = {"dry_run": True, "path": loaded.lock_path, "inputs": wanted.model_dump()}
        text = f"would resolve, and write to {loaded.lock_path}:\n"
        text += _rows(wanted.model_dump(mode="json"))
        answer(as_json, "recipe-lock", document, text)
        return
    known = old_lock(loaded)
    before = _versions(known.packages if known else ())
    keep, stale = kept_in(archive, Cache.default())
    findings = [*stale]
    source = archive or Cache.default().archive
    # One that is still to be made has nothing to read from.
    there = source if source is not None and source.is_dir() else None
    cache = replace(Cache.default(), archive=there)
    lock = lock_recipe(
        loaded, progress(as_json), cache, upgrade=upgrade, keep=keep, on_finding=findings.append
    )
    after = _versions(lock.packages)
    moved = [
        (package, before.get(package, ""), after.get(package, ""))
        for package in sorted(before.keys() | after.keys())
        if before.get(package) != after.get(package)
    ]
    lines = [] if moved or not before else ["nothing moved"]
    for package, old, new in moved if before else ():
        added_or_gone = f"+ {package} {new}" if new else f"- {package} {old}"
        lines.append(f"  {package} {old} -> {new}" if old and new else added_or_gone)
    size = human_bytes(lock.download_bytes)
    lines.append(f"{loaded.lock_path}: {_sum(lock)}, {size} to download")
    if keep is not None:
        lines.append(f"{keep}: has every file of the lock")
    document = {"dry_run": False, "path": loaded.lock_path, "lock": _lock_summary(lock)}
    document |= {"archive": keep, "findings": findings}
    if not as_json:
        print_findings(findings)
    moves = [{"package": p, "before": a or None, "after": b or None} for p, a, b in moved]
    answer(as_json, "recipe-lock", {**document, "moves": moves}, "\n".join(lines))


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
    document = {"dry_run": dry_run, "path": path, "tools": packages}
    lines = [
        f"{key}: {before.get(key, 'none')} -> {after.get(key, 'none')}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]
    unchanged = "" if before != after else ", unchanged"
    lines.append(f"{path}: tool tree {after['tree'][:12]}{unchanged}")
    text = f"would lock {', '.join(packages)}, and write to {path}" if dry_run else "\n".join(lines)
    answer(as_json, "recipe-lock-tools", {**document, "before": before, "after": after}, text)


@recipe.command()
@declared
def render(
    name: str = RECIPE,
    output: Path | None = option(
        "-o --output DIR",
        "The folder to write; containers/rendered/NAME of a checkout, or rendered/NAME, otherwise.",
    ),
    dry_run: bool = option("--dry-run", "Show which files would change; write nothing."),
    as_json: bool = JSON,
) -> None:
    """Write a recipe as a Containerfile and a Singularity.def, for people without fairlead.

    Both install exactly the packages of the lock. Base image, mirror and Python index are arguments
    of the build; everything else they need is in the same folder.

    \b
    fairlead recipe render mpi-base -o for-colleagues
    podman build -t mpi-base for-colleagues
    """
    from fairlead_build.render import render_recipe

    result = render_recipe(name, output, dry_run=dry_run)
    head = {"recipe": result.recipe, "folder": result.folder, "pinned": result.pinned}
    document = {**head, "dry_run": dry_run, "files": result.files}
    text = "\n".join(f"{file.change:<9}  {result.folder / file.path}" for file in result.files)
    loose = None if result.pinned else "versions are not pinned: the recipe has no lock"
    answer(as_json, "recipe-render", document, text, loose)


@recipe.command("import")
@declared
def import_(
    file: Path = argument(type=PATH),
    output: Path | None = option(
        "-o --output DIR", "The recipe's folder, which must be new. [default: the file's name]"
    ),
    allow_loss: bool = option("--allow-loss", "Write the recipe even if parts are lost."),
    dry_run: bool = option("--dry-run", "Show the recipe and what is lost; write nothing."),
    as_json: bool = JSON,
) -> int:
    """Convert a Containerfile or a Singularity.def to a recipe, and list what was lost.

    A recipe says what is in an image; these files say what to run. Whatever may not carry over
    exactly is listed with its line, the reason, and what to do instead. Then nothing is written
    and the exit code is 2, unless you pass --allow-loss.

    \b
    fairlead recipe import hep.def --dry-run
    fairlead recipe import hep.def -o hep --allow-loss
    """
    from fairlead_build.importing.folder import import_file, lossy, unseen

    result = import_file(file, output, allow_loss=allow_loss, dry_run=dry_run)
    severity = Severity.WARNING if allow_loss else Severity.ERROR
    findings = [loss.finding(severity) for loss in result.losses]
    refused = bool(findings) and not allow_loss
    if result.base:
        findings.append(unseen(file, result.base))
    if refused and not dry_run:
        raise FairleadError([*findings, lossy(file)], ExitCode.USAGE)
    code = ExitCode.USAGE if refused else ExitCode.DONE
    if as_json:
        head = {"name": result.name, "folder": result.folder, "written": result.written}
        print_json("recipe-import", head | vars(result))
        return code
    if dry_run:
        click.echo(result.recipe, nl=False)
    print_findings(findings)
    if result.written:
        echo(str(result.folder / "recipe.toml"))
        echo(f"next: fairlead recipe lock {result.folder}", err=True)
    return code


# --- what several of them show ----------------------------------------------------------------


def _versions(packages: Iterable[Package]) -> dict[str, str]:
    """What a lock has, by name; a package may be there in several roles."""
    versions_of: dict[str, set[str]] = {}
    for package in packages:
        versions_of.setdefault(package.name, set()).add(package.version)
    return {name: ", ".join(sorted(versions)) for name, versions in versions_of.items()}


def _lock_of(loaded: recipes.LoadedRecipe) -> Lock:
    return load_lock(loaded, requirements_in(loaded.recipe))[0]


def _sum(lock: Lock) -> str:
    return f"{len(lock.deb)} Debian packages, {len(lock.wheel)} wheels"


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


def _rows(values: dict[str, Any]) -> str:
    return table([(key, _shown(value)) for key, value in values.items()])


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items()) or "none"
    return str(value)
