"""``fairlead explain``: the plan in words."""

from __future__ import annotations

import os
from dataclasses import replace

import click

from fairlead.base.errors import FairleadError
from fairlead.cli import options, show
from fairlead.cli.declare import JSON, argument, declared, option
from fairlead.cli.screen import answer, echo, print_json, progress
from fairlead.cli.staging import Staging
from fairlead.comm.dropin.variables import account
from fairlead.comm.settings import in_effect
from fairlead.launch import launch as launching
from fairlead.launch.request import shape as make_shape
from fairlead.schedulers.registry import find_allocation
from fairlead.session.prepare import prepare
from fairlead.swap.why_not import why_not as reasons
from fairlead.transfer import job as staged

EPILOG = """\b
Examples:
  fairlead explain tensorflow
  fairlead explain tensorflow -- python3 train.py
  fairlead explain tensorflow --mpi container
  fairlead explain tensorflow --why-not libfabric.so.1
"""


@click.command(epilog=EPILOG)
@declared
def explain(
    image: str,
    command: tuple[str, ...] = argument(nargs=-1, type=click.UNPROCESSED),
    *,
    asked: options.Placement,
    planning: options.Planning,
    data: Staging,
    why_not: str | None = option(
        "--why-not LIB", "Only explain what happens to this host library, and why."
    ),
    as_json: bool = JSON,
) -> None:
    """Explain the plan: every line of it, the reason, and the fact behind the reason.

    Launches nothing, and writes only to the cache.
    """
    if asked.ranks is None and not asked.nodes and not asked.per_node:
        asked = replace(asked, ranks=2)
    shape = make_shape(asked, find_allocation(os.environ))
    request = planning.request(shape.ranks, command, shape=shape)
    request = replace(request, rendezvous="auto")
    prepared = prepare(image, planning.choices, request, progress=progress(as_json), elsewhere=True)
    if why_not is not None:
        lines = reasons(prepared.plan, why_not)
        text = "\n".join(map(show.line_text, lines))
        answer(as_json, "why-not", {"library": why_not, "lines": lines}, text)
        return
    wish = data.wish(prepared.plan.site)
    if wish:
        plan = prepared.plan
        prepared = replace(prepared, plan=replace(plan, lines=(*plan.lines, *staged.lines(wish))))
    try:
        shown = launching.command_line(
            prepared.plan,
            command or ("COMMAND",),
            shape.ranks,
            (wish.bind,) if wish else (),
            env=wish.env if wish else None,
        ).shell()
    except FairleadError as exc:  # the engine cannot express it; a finding also says so
        shown = f"(none: {exc.findings[0].what})"
    settings, old_settings = in_effect({**os.environ, **prepared.comm.env}), account(os.environ)
    if as_json:
        tuned = {setting.name: value for setting, value in settings}
        tuned |= {setting.name: value for setting, value, counts in old_settings if counts}
        document = show.prepared_json(prepared)
        print_json("explain", {**document, "command_line": shown, "collectives": tuned})
        return
    echo(show.plan_text(prepared))
    echo("\n" + click.style("Gradients, by fairlead.comm", bold=True))
    echo(show.comm_text(prepared.comm))
    for setting, value in settings:
        echo(f"  {f'{setting.name}={value}':<36} {setting.meaning}")
    echo("\n" + click.style("Gradients of old scripts, by fairlead.comm.dropin", bold=True))
    for setting, value, counts in old_settings:
        effect = "" if counts else "no effect here: "
        echo(f"  {f'{setting.name}={value}':<36} {effect}{setting.meaning}")
    echo("\n" + click.style("Command line", bold=True) + f"\n  {shown}")
    if prepared.refused:
        echo("\n" + click.style("This plan is refused before launch:", fg="red", bold=True))
        echo(show.findings_text(f for f in prepared.findings if f.severity == "error"))
