"""``fairlead validate``: is this machine as fast as it should be, and if not, what is slow?"""

from __future__ import annotations

import datetime
import json
import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity, error, fail
from fairlead.base.paths import atomic_write, cache_dir
from fairlead.base.serde import to_json
from fairlead.base.suggest import suggest
from fairlead.cli import options, show
from fairlead.cli import timeline as timelines
from fairlead.cli.screen import json_option, print_findings, print_json, progress, table
from fairlead.cli.within import within
from fairlead.launch import unpack
from fairlead.launch.request import Asked
from fairlead.ml import registry
from fairlead.proof.verdict import Proof
from fairlead.session.model import Prepared
from fairlead.session.prepare import prepare, refuse

# A report is mostly far below 1 MB; what ranks write of their progress comes to it.
_REPORT_BYTES = 2 << 20

if TYPE_CHECKING:
    from fairlead.ml.train.host import Runner
    from fairlead.perf.measure.step import Options
    from fairlead.perf.projection.small_runs import SmallRun
    from fairlead.perf.records.validation import Validation, Way

EPILOG = """\b
Examples:
  fairlead validate --quick
  fairlead validate --ranks 1,2,4,8 --native /opt/python/bin/python3
  fairlead validate --ranks 1,2 --models hepcnn,cosmoflow -o before-the-upgrade
  fairlead validate --models hepcnn --data /project/hep --skip-damaged
  fairlead validate -N 16 --ranks-per-node 8 --ranks 1,64,128 --save-reference
  fairlead report --compare last~1 last

\b
Exit codes, by what is most fundamental: 122 ranks ran another MPI than planned; 125 answers were
wrong; 1 something broke, as a rank that was killed; 125 a line is slow; 0 as fast as expected, or
nothing to expect. As of `fairlead run` where nothing could be launched.
"""


def _counts(context: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Counts of ranks, e.g. ``1,2,4``, ascending."""
    words = [word.strip() for word in value.split(",")]
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise click.BadParameter(f"{value!r} is no list of counts; write e.g. 1,2,4")
    return tuple(sorted({int(word) for word in words}))


def _models(
    context: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    """Bundled models, e.g. ``hepcnn,cosmoflow``; ``none`` for none."""
    if value is None or value == "none":
        return None if value is None else ()
    words = tuple(dict.fromkeys(word.strip() for word in value.split(",")))
    for word in words:
        if registry.REGISTRY.find(word) is None:
            raise click.BadParameter(f"no model `{word}`. {suggest(word, registry.names())}")
    return words


@click.command(epilog=EPILOG, short_help="Is this machine as fast as it should be?")
@click.option(
    "-n",
    "--ranks",
    callback=_counts,
    metavar="N,N,…",
    default="1,2",
    show_default=True,
    help="Counts to measure at; the largest one for all that is measured once.",
)
@click.option(
    "--models",
    callback=_models,
    metavar="NAME,…",
    help=f"Bundled models to train, or `none`.  [default: {','.join(registry.validated())}]",
)
@click.option(
    "--weak/--strong",
    default=True,
    help="Samples a rank, or a step, stay the same.  [default: weak]",
)
@click.option(
    "--data",
    "folders",
    multiple=True,
    metavar="[MODEL=]DIRECTORY",
    help="Your own files of a model, instead of generated ones. Repeatable, with a model each.",
)
@click.option(
    "--skip-damaged",
    is_flag=True,
    help="Leave out files that cannot be read, and count them; all are read before.",
)
@click.option("--quick", is_flag=True, help="Fewer sizes and steps, and HEP-CNN alone: minutes.")
@options.nodes_options
@options.image_option()
@options.choice_options
@click.option(
    "--native",
    metavar="PYTHON",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A Python of the host with mpi4py, and TensorFlow for models: all is measured without a"
    " container too.",
)
@click.option(
    "--save-reference", is_flag=True, help="Keep what was measured as this site's references."
)
@click.option("--save-crowded", is_flag=True, help="With it: also lines whose ranks shared cores.")
@click.option(
    "--save-slow", is_flag=True, help="With it: also lines that are slow by what was expected."
)
@options.output_option("fairlead-validation")
@options.watchdog_option
@timelines.timeline_option
@click.option("--dry-run", is_flag=True, help="Say what would be measured, and launch nothing.")
@json_option
def validate(
    ranks: tuple[int, ...],
    asked: Asked,
    models: tuple[str, ...] | None,
    weak: bool,
    folders: tuple[str, ...],
    skip_damaged: bool,
    quick: bool,
    image: str,
    planning: options.Planning,
    native: Path | None,
    save_reference: bool,
    save_crowded: bool,
    save_slow: bool,
    output: Path,
    watchdog: float | None,
    timeline_file: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Measure this machine, judge every line, and say why a slow one is slow.

    Doctor's checks; the proof of the swap; start-up by phase; memory and storage; ping-pong,
    allreduce and broadcast with every answer checked; a search for a slow node, link or processor;
    training of the bundled models at each count of ranks. Each line is held against this site's
    references, or what the hardware allows, or the same without a container.
    """
    from fairlead.ml.train.session_runner import runner
    from fairlead.perf.draw.compose import facts
    from fairlead.perf.draw.pages import require_tools
    from fairlead.perf.judge.assess import Circumstances, assess
    from fairlead.perf.measure import environment, pipeline
    from fairlead.perf.measure import native as natively
    from fairlead.perf.measure.step import Context, Options
    from fairlead.perf.records.validation import Way

    output = output.absolute()
    usual = registry.validated()
    wanted = models if models is not None else (usual[:1] if quick else usual)
    data = _data(folders, wanted)
    shape, _ = within(replace(asked, ranks=max(ranks)), planning, dry_run=dry_run)
    recorder = timelines.recording(timeline_file, dry_run=dry_run, nobody=timelines.NO_TRAINING)
    bars = recorder.progress(progress(as_json)) if recorder else progress(as_json)
    with timelines.stage(recorder, "plan"):
        request = planning.request(shape.ranks, shape=shape)
        prepared = prepare(image, planning.choices, request, progress=bars)
    require_tools("jinja2", "numpy")
    if prepared.refused:
        raise refuse(prepared)
    host = prepared.plan.host
    scope = Options(
        out=output / "run",
        ranks=ranks,
        models=wanted,
        quick=quick,
        cores=len(os.sched_getaffinity(0)),
        strong=not weak,
        data=data,
        skip_damaged=skip_damaged,
    )
    if native is not None:
        natively.modules(native)
        if host is None:
            raise fail(
                "there is no MPI of the host to run natively by",
                where="--native with --mpi container",
                why="the plan leaves the image's own MPI in place",
                remedy="leave out one of the two",
                check="validate-native",
                code=ExitCode.USAGE,
            )
    if dry_run:
        return _dry_run(prepared, scope, native, as_json)
    _room(output)
    unpack.ensure(prepared.plan, cache_dir(), bars)
    begun, clock, load = (
        datetime.datetime.now(datetime.UTC).astimezone(),
        time.monotonic(),
        environment.load(),
    )
    with bars.stage("doctor") as stage:
        ill = _doctor()
        stage.result(f"{len(ill)} findings" if ill else "all is well")
    proofs: list[Proof] = []
    log = output / "ranks.log"
    log.unlink(missing_ok=True)
    inside = Way.IMAGE if host is None else Way.CONTAINER
    ways: dict[Way, Runner] = {inside: runner(prepared, log, proofs.append, watchdog, recorder)}
    if native is not None and host is not None:
        ways[Way.NATIVE] = natively.runner(prepared, host, native, log, recorder)
    context = Context(scope, ways, prepared.plan.launcher.kind, bars)
    pipeline.measure(context)
    seen, seconds = context.seen, time.monotonic() - clock
    around = Circumstances(prepared.plan, proofs, ill, load, facts(prepared), begun, seconds)
    result = assess(scope, seen, around)
    code = _told(result, seen.runs, output, save_reference, save_crowded, save_slow, as_json)
    if seen.stopped:
        return ExitCode.PROOF_FAILED
    unlaunched = set(seen.codes) == {ExitCode.LAUNCH_FAILED} and not any(
        m.samples for m in seen.measurements
    )
    return ExitCode.LAUNCH_FAILED if unlaunched else code


def _data(folders: Sequence[str], models: Sequence[str]) -> dict[str, Path]:
    """``--data`` by model."""
    found: dict[str, Path] = {}
    for text in folders:
        model, equals, name = text.partition("=")
        if not equals or registry.REGISTRY.find(model) is None:
            if len(models) != 1:
                which = f"--data {models[0]}={text}" if models else "leave it out"
                raise click.UsageError(
                    f"--data {text}: {len(models)} models are measured; write e.g. {which}"
                )
            model, name = models[0], text
        if model not in models or model in found:
            why = "named twice" if model in found else "not measured"
            raise click.UsageError(f"--data {text}: {model} is {why}; --models says which are")
        found[model] = Path(name).expanduser().absolute()
        if not found[model].is_dir():
            raise click.UsageError(f"--data {text}: there is no folder {found[model]}")
    return found


def _room(output: Path) -> None:
    """Sees to it, before minutes of measurements, that a report can be written.

    Raises:
        FairleadError: the folder cannot be made, or has no room.
    """
    try:
        with atomic_write(output / ".room") as stream:
            stream.write(bytes(_REPORT_BYTES))
        (output / ".room").unlink()
    except OSError as exc:
        raise fail(
            "the report cannot be written",
            where=str(output),
            why=exc.strerror or str(exc),
            remedy="make room there, or name another folder: -o FOLDER",
            check="output-unwritable",
        ) from None


def _small_runs(output: Path, runs: Mapping[str, Sequence[SmallRun]]) -> None:
    """A file a model, from which `fairlead project` tells of more nodes."""
    from fairlead.perf.projection.small_runs import small_runs_json

    for model, found in runs.items():
        with atomic_write(output / f"small-runs-{model}.json", "w") as stream:
            json.dump(small_runs_json(found), stream)


def _doctor() -> list[Finding]:
    """What doctor finds to be mended."""
    from fairlead.doctor.fix import examine
    from fairlead.doctor.registry import ordered
    from fairlead.doctor.world import LocalWorld

    bad = (Severity.WARNING, Severity.ERROR)
    return [d.finding for d in examine(LocalWorld(), ordered()) if d.finding.severity in bad]


def _told(
    result: Validation, runs: Mapping[str, Sequence[SmallRun]], output: Path, save: bool,
    crowded: bool, slow: bool, as_json: bool,
) -> int:  # fmt: skip
    """Keeps, writes and shows what came out; the exit code. What can be written nowhere is shown all the same."""
    from fairlead.perf.draw.validation_page import write_validation
    from fairlead.perf.judge import references as reference
    from fairlead.perf.judge import verdict
    from fairlead.perf.records import history

    refused: list[Finding] = []
    kept: Path | None = None
    paths: tuple[Path, ...] = ()
    saved: Path | None = None
    try:
        kept = history.keep(result)
    except FairleadError as exc:
        refused += exc.findings
    try:
        paths = write_validation(output, result)
        _small_runs(output, runs)
    except OSError as exc:
        refused.append(_no_report(exc, output, result.id if kept else ""))
    if save:
        try:
            saved, _ = reference.save(result, crowded_too=crowded, slow_too=slow)
        except FairleadError as exc:
            refused += exc.findings
    page, document, rows = (*map(str, paths), None, None, None)[:3]
    if as_json:
        payload = to_json(result)
        print_json(
            "validate",
            {
                "headline": verdict.headline(result),
                "page": page,
                "document": document,
                "rows": rows,
                "kept": str(kept) if kept else None,
                "references": str(saved) if saved else None,
                "refused": [finding.to_json() for finding in refused],
                **payload,
            },
        )
    else:
        click.echo("\n" + _table(result) + "\n")
        slower = [f for f in result.evidence.findings if f.check == "validate-slow"]
        if shown := [*result.faults, *slower]:
            print_findings(shown, err=False)
            click.echo("")
        click.secho(verdict.headline(result), bold=True)
        if paths:
            click.echo(f"report: {page}\n        {document}\n        {rows}")
        if saved:
            click.echo(f"references of site {result.machine.site}: {saved}")
        if refused:
            print_findings(refused)
    code = verdict.exit_code(result)
    return ExitCode.FAILED if refused and code is ExitCode.DONE else code


def _no_report(exc: OSError, output: Path, kept: str) -> Finding:
    """The report's folder cannot be written any more; the validation itself may be kept."""
    return error(
        "the report cannot be written",
        where=str(exc.filename or output),
        why=exc.strerror or str(exc),
        remedy=f"fairlead report {kept} -o FOLDER" if kept else "the same command, -o FOLDER",
        check="output-unwritable",
    )


def _table(result: Validation) -> str:
    """A line for each kind of measurement and way, then those that are slow or wrong, each with its reason."""
    from fairlead.perf.draw.wording import amount, label, name_of
    from fairlead.perf.records.validation import State
    from fairlead.perf.stats import summarize

    states = tuple(State)
    groups: dict[tuple[str, str], Counter[State]] = {}
    ill = []
    for m, v in zip(result.measurements, result.verdicts, strict=True):
        groups.setdefault((m.what.value, name_of(m.way)), Counter())[v.state] += 1
        if v.state in (State.SLOW, State.WRONG):
            times = f" {v.times:.2f} x" if v.times is not None and not math.isnan(v.times) else ""
            median = amount(summarize(m.samples).median, m.unit)
            ill.append((v.state.value + times, label(m), median, v.because))
    head = ("lines", "", *(state.value for state in states))
    counts = [(*key, *(found[s] or "" for s in states)) for key, found in groups.items()]
    text = table([[str(cell) for cell in row] for row in counts], head)
    return text + ("\n\n" + table(ill) if ill else "")


def _dry_run(prepared: Prepared, scope: Options, native: Path | None, as_json: bool) -> int:
    from fairlead.perf.measure.steps import STEPS

    ways = f"in {prepared.image.path}" + (
        f", and natively by {native}" if native else "; natively: not asked for (--native)"
    )
    steps = [
        ways,
        *(line for step in STEPS for line in step.describe(scope)),
        f"report in {scope.out.parent}",
    ]
    if as_json:
        print_json("validate", {**show.prepared_json(prepared), "steps": steps, "dry_run": True})
    else:
        click.echo("\n".join([show.swap_line(prepared.plan), *steps]))
    return ExitCode.DONE
