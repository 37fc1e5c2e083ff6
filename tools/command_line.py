"""Parts of docs/reference/command-line.md: every verb with its options, and the settings of ``fairlead.comm``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from fairlead.cli.main import main
from fairlead.comm import settings as comm_settings

SEE = {
    "recipe import": "../howto/recipes.md#to-and-from-other-formats",
    "recipe lock": "../howto/recipes.md#locks",
    "recipe new": "../howto/recipes.md",
    "build": "../howto/images.md",
    "push": "../howto/registries.md",
    "pull": "../howto/registries.md",
    "inspect": "../howto/images.md#contents",
    "diff": "../howto/images.md#compare-images",
    "sign": "../howto/signatures.md",
    "site capture": "../howto/elsewhere.md",
    "site check": "../tutorials/new-machine.md#4-what-does-not-hold",
    "site detect": "../tutorials/new-machine.md",
    "site export": "../howto/exports.md",
    "site new": "../howto/site-profiles.md",
    "doctor": "doctor.md",
    "preflight": "../howto/swap.md#will-it-run",
    "explain": "../howto/swap.md#why",
    "run": "../howto/swap.md#did-it",
    "shell": "../howto/swap.md#a-shell",
    "script": "../howto/schedulers.md#a-job-script",
    "train": "../howto/models.md",
    "tune": "../howto/tune.md",
    "bench collectives": "../howto/benchmarks.md",
    "validate": "../howto/validation.md",
    "project": "../explanation/projection.md",
    "report": "../howto/validation.md#keep-and-compare",
}


def verbs() -> dict[str, click.Command]:
    """Every command by its full name, e.g. ``recipe lock``, in the order of ``--help``."""

    def walk(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
        if not isinstance(command, click.Group):
            yield name, command
            return
        context = click.Context(command)
        for inner in command.list_commands(context):
            known = command.get_command(context, inner)
            assert known is not None
            yield from walk(known, f"{name} {inner}".strip())

    return dict(walk(main, ""))


def options(command: click.Command) -> dict[str, click.Option]:
    """A verb's options by their long names; ``--json``, which every verb has, is left out."""
    found = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    return {max(p.opts, key=len): p for p in found if "--json" not in p.opts}


def groups() -> dict[str, dict[str, click.Option]]:
    """The options that verbs share, by the name of their group."""
    known = verbs()
    planning, script = options(known["preflight"]), options(known["script"])
    elsewhere = set(options(known["run"])) & set(options(known["train"]))
    placement = {n: o for n, o in script.items() if n in elsewhere and n not in planning}
    staging = {n: o for n, o in script.items() if n.startswith("--stage-")}
    return {"planning": planning, "placement": placement, "staging": staging}


def verbs_section() -> str:
    """Every verb, and before them what they share."""
    shared = groups()
    lines = [
        "### Shared options",
        "",
        "Every verb takes `--json`. `--dry-run` says what a verb would do, and does nothing.",
        "",
    ]
    for name, members in shared.items():
        lines += [f"Options of {name}:", "", *map(_item, members.values()), ""]
    for name, command in verbs().items():
        lines += [*_verb(name, command, shared), ""]
    return "\n".join(lines)


def _verb(
    name: str, command: click.Command, shared: dict[str, dict[str, click.Option]]
) -> list[str]:
    mine = options(command)
    has = [g for g, members in shared.items() if all(n in mine for n in members)]
    taken = {n: shared[g][n] for g in has for n in shared[g]}
    own = [o for n, o in mine.items() if n not in taken or _item(o) != _item(taken[n])]
    arguments = " ".join(
        p.make_metavar(click.Context(command))
        for p in command.params
        if isinstance(p, click.Argument)
    )
    see = SEE.get(name)
    lines = [f"### `fairlead {name} {arguments}".rstrip() + "`", "", _prose(command)]
    lines[-1] += f" ([guide]({see}))" if see else ""
    if has:
        lines[-1] += f" Takes the options of {' and of '.join(has)}."
    return [*lines, "", *map(_item, own)] if own else lines


def _prose(command: click.Command) -> str:
    """The help's first paragraph; guides and ``--help`` have the rest."""
    return " ".join((command.help or "").split("\n\n")[0].split())


def _item(option: click.Option) -> str:
    context = click.Context(main)
    names = ", ".join(f"`{n}`" for n in (*option.opts, *option.secondary_opts))
    if "--dry-run" in option.opts:
        return f"- {names}"
    record = option.get_help_record(context)
    assert record is not None
    # Click's own ranges, alone or behind a default, say little more than the metavar.
    about = re.sub(r"  \[(?!default|required)[^\]]*\]|; [^];]*x[<>=][^];]*(?=\])", "", record[1])
    about = " ".join(about.split()).rstrip(".").replace("*", r"\*")
    return f"- {names}{_value(option, context)}: {about}"


def _value(option: click.Option, context: click.Context) -> str:
    if option.is_flag:
        return ""
    if option.metavar is None and isinstance(option.type, click.IntRange | click.FloatRange):
        return " `N`"
    return f" `{option.make_metavar(context)}`"


def settings_section() -> str:
    """The variables of ``fairlead.comm``."""
    return "".join(
        f"- `{s.name}`{f' [{s.default}]' if s.default else ''}: {s.meaning}\n"
        for s in comm_settings.settings()
    )
