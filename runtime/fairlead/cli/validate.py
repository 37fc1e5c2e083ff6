"""``fairlead validate``: is this machine as fast as it should be, and if not, what is slow?"""

from __future__ import annotations

import datetime
import json
import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from fairlead.session.recorder import Recorder

# Most reports are far below 1 MB; the progress files of the ranks come on top.
_REPORT_BYTES = 2 << 20

if TYPE_CHECKING:
    from fairlead.ml.train.host import Runner
    from fairlead.perf.measure.step import Observations, Options
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
Exit codes, the most serious first: 122 ranks ran on another MPI than planned; 125 answers are
wrong; 1 something broke, e.g. a rank was killed; 125 a line is slow; 0 as fast as expected, or no
expectation. Those of `fairlead run` if nothing could be launched.
"""


@dataclass(frozen=True)
class ValidateFlags:
    """The options of ``fairlead validate`` that no other group of options holds."""

    weak: bool
    folders: tuple[str, ...]
    skip_damaged: bool
    quick: bool
    native: Path | None
    save_reference: bool
    save_crowded: bool
    save_slow: bool
    output: Path
    watchdog: float | None
    timeline_file: str
    dry_run: bool
    as_json: bool


@dataclass(frozen=True)
class _Written:
    """What came of writing a validation.

    Attributes:
        kept: its document in the history.
        paths: page, document and rows of the report.
        references: the file of the site's references.
        refused: why some of these could not be written.
    """

    kept: Path | None
    paths: tuple[Path, ...]
    references: Path | None
    refused: list[Finding]


def _counts(context: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Counts of ranks, e.g. ``1,2,4``, ascending."""
    words = [word.strip() for word in value.split(",")]
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise click.BadParameter(f"{value!r} is not a list of counts; write e.g. 1,2,4")
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


@click.command(epilog=EPILOG, short_help="Check that this machine is as fast as it should be.")
@click.option(
    "-n",
    "--ranks",
    callback=_counts,
    metavar="N,N,…",
    default="1,2",
    show_default=True,
    help="Numbers of ranks to measure at; what is measured once uses the largest.",
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
    help="Keep the samples per rank (weak) or per step (strong) constant.  [default: weak]",
)
@click.option(
    "--data",
    "folders",
    multiple=True,
    metavar="[MODEL=]DIRECTORY",
    help="Train on your own files instead of generated ones. Repeatable, once per model.",
)
@click.option(
    "--skip-damaged",
    is_flag=True,
    help="Skip and count files that cannot be read; all files are read first.",
)
@click.option(
    "--quick", is_flag=True, help="Fewer sizes and steps, and only HEP-CNN; takes minutes."
)
@options.nodes_options
@options.image_option()
@options.choice_options
@click.option(
    "--native",
    metavar="PYTHON",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also measure without a container, using this Python of the host; it needs mpi4py, and"
    " TensorFlow for models.",
)
@click.option(
    "--save-reference", is_flag=True, help="Save the measurements as this site's references."
)
@click.option(
    "--save-crowded",
    is_flag=True,
    help="With --save-reference: also save lines whose ranks shared cores.",
)
@click.option(
    "--save-slow", is_flag=True, help="With --save-reference: also save lines slower than expected."
)
@options.output_option("fairlead-validation")
@options.watchdog_option
@timelines.timeline_option
@click.option("--dry-run", is_flag=True, help="Print what would be measured, and launch nothing.")
@json_option
@options.collected(ValidateFlags)
def validate(
    ranks: tuple[int, ...],
    asked: Asked,
    models: tuple[str, ...] | None,
    image: str,
    planning: options.Planning,
    flags: ValidateFlags,
) -> int:
    """Measure this machine, judge every result, and explain what is slow.

    Runs doctor's checks; the proof of the swap; start-up by phase; memory and storage; ping-pong,
    allreduce and broadcast with every answer checked; a search for a slow node, link or processor;
    and training of the bundled models at each number of ranks. Each result is compared with this
    site's references, with what the hardware allows, or with the same run without a container.
    """
    from fairlead.perf.draw.compose import facts
    from fairlead.perf.draw.pages import require_tools
    from fairlead.perf.judge.assess import Circumstances, assess
    from fairlead.perf.measure import processors, steps
    from fairlead.perf.measure.step import Context

    output = flags.output.absolute()
    usual = registry.validated()
    chosen = models if models is not None else (usual[:1] if flags.quick else usual)
    data = _data(flags.folders, chosen)
    shape, _ = within(replace(asked, ranks=max(ranks)), planning, dry_run=flags.dry_run)
    recorder = timelines.recording(
        flags.timeline_file, dry_run=flags.dry_run, nobody=timelines.NO_TRAINING
    )
    bars = progress(flags.as_json)
    bars = recorder.progress(bars) if recorder else bars
    with timelines.stage(recorder, "plan"):
        request = planning.request(shape.ranks, shape=shape)
        prepared = prepare(image, planning.choices, request, progress=bars)
    require_tools("jinja2", "numpy")
    if prepared.refused:
        raise refuse(prepared)
    scope = _scope(flags, ranks, chosen, data)
    _check_native(flags.native, prepared)
    if flags.dry_run:
        return _dry_run(prepared, scope, flags.native, flags.as_json)
    _check_writable(output)
    unpack.ensure(prepared.plan, cache_dir(), bars)
    begun, clock = datetime.datetime.now(datetime.UTC).astimezone(), time.monotonic()
    load = processors.load()
    with bars.stage("doctor") as stage:
        problems = _doctor()
        stage.result(f"{len(problems)} findings" if problems else "all is well")
    proofs: list[Proof] = []
    ways = _ways(prepared, flags, output / "ranks.log", proofs, recorder)
    context = Context(scope, ways, prepared.plan.launcher.kind, bars)
    steps.measure(context)
    around = Circumstances(
        prepared.plan, proofs, problems, load, facts(prepared), begun, time.monotonic() - clock
    )
    result = assess(scope, context.seen, around)
    written = _write(result, context.seen.runs, output, flags)
    _show(result, written, flags.as_json)
    return _exit_code(result, written, context.seen)


def _scope(
    flags: ValidateFlags,
    ranks: tuple[int, ...],
    models: tuple[str, ...],
    data: dict[str, Path],
) -> Options:
    """What is measured."""
    from fairlead.perf.measure.step import Options

    return Options(
        out=flags.output.absolute() / "run",
        ranks=ranks,
        models=models,
        quick=flags.quick,
        cores=len(os.sched_getaffinity(0)),
        strong=not flags.weak,
        data=data,
        skip_damaged=flags.skip_damaged,
    )


def _check_native(python: Path | None, prepared: Prepared) -> None:
    """Check that the ranks can also run without a container.

    Raises:
        FairleadError: the Python lacks a package; or, exit code 2, the plan has no MPI of the host.
    """
    from fairlead.perf.measure import native as natively

    if python is None:
        return
    natively.check(python)
    if prepared.plan.host is None:
        raise fail("validate-native-no-host-mpi")


def _ways(
    prepared: Prepared,
    flags: ValidateFlags,
    log: Path,
    proofs: list[Proof],
    recorder: Recorder | None,
) -> dict[Way, Runner]:
    """What launches ranks, in the container and natively. Launches append to ``proofs``."""
    from fairlead.ml.train.session_runner import runner
    from fairlead.perf.measure import native as natively
    from fairlead.perf.records.validation import Way

    log.unlink(missing_ok=True)
    host = prepared.plan.host
    contained = Way.IMAGE if host is None else Way.CONTAINER
    ways: dict[Way, Runner] = {
        contained: runner(prepared, log, proofs.append, flags.watchdog, recorder)
    }
    if flags.native is not None and host is not None:
        ways[Way.NATIVE] = natively.runner(prepared, host, flags.native, log, recorder)
    return ways


def _exit_code(result: Validation, written: _Written, observed: Observations) -> int:
    from fairlead.perf.judge import verdict

    if observed.stopped:
        return ExitCode.PROOF_FAILED
    if set(observed.codes) == {ExitCode.LAUNCH_FAILED} and not any(
        m.samples for m in observed.measurements
    ):
        return ExitCode.LAUNCH_FAILED
    code = verdict.exit_code(result)
    return ExitCode.FAILED if written.refused and code is ExitCode.DONE else code


def _data(folders: Sequence[str], models: Sequence[str]) -> dict[str, Path]:
    """``--data`` by model."""
    data: dict[str, Path] = {}
    for text in folders:
        model, equals, name = text.partition("=")
        if not equals or registry.REGISTRY.find(model) is None:
            if len(models) != 1:
                which = f"--data {models[0]}={text}" if models else "leave it out"
                raise click.UsageError(
                    f"--data {text}: {len(models)} models are measured; write e.g. {which}"
                )
            model, name = models[0], text
        if model not in models or model in data:
            why = "named twice" if model in data else "not measured"
            raise click.UsageError(
                f"--data {text}: {model} is {why}; --models lists the measured ones"
            )
        data[model] = Path(name).expanduser().absolute()
        if not data[model].is_dir():
            raise click.UsageError(f"--data {text}: there is no folder {data[model]}")
    return data


def _check_writable(output: Path) -> None:
    """Check, before minutes of measurements, that a report can be written.

    Raises:
        FairleadError: the folder cannot be made, or has no room.
    """
    try:
        with atomic_write(output / ".room") as stream:
            stream.write(bytes(_REPORT_BYTES))
        (output / ".room").unlink()
    except OSError as exc:
        raise fail(
            "output-unwritable-validation", output=output, reason=exc.strerror or str(exc)
        ) from None


def _small_runs(output: Path, runs: Mapping[str, Sequence[SmallRun]]) -> None:
    """Write a file for each model, from which `fairlead project` projects to more nodes."""
    from fairlead.perf.projection.small_runs import small_runs_json

    for model, runs_of_model in runs.items():
        with atomic_write(output / f"small-runs-{model}.json", "w") as stream:
            json.dump(small_runs_json(runs_of_model), stream)


def _doctor() -> list[Finding]:
    """The warnings and errors of doctor."""
    from fairlead.doctor.fix import examine
    from fairlead.doctor.registry import ordered
    from fairlead.doctor.world import LocalWorld

    bad = (Severity.WARNING, Severity.ERROR)
    return [d.finding for d in examine(LocalWorld(), ordered()) if d.finding.severity in bad]


def _write(
    result: Validation, runs: Mapping[str, Sequence[SmallRun]], output: Path, flags: ValidateFlags
) -> _Written:
    """Write history, report and references. A failure of one does not stop the others."""
    from fairlead.perf.draw.validation_page import write_validation
    from fairlead.perf.judge import references as reference
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
    if flags.save_reference:
        try:
            saved, _ = reference.save(
                result, crowded_too=flags.save_crowded, slow_too=flags.save_slow
            )
        except FairleadError as exc:
            refused += exc.findings
    return _Written(kept, paths, saved, refused)


def _show(result: Validation, written: _Written, as_json: bool) -> None:
    from fairlead.perf.judge import verdict

    page, document, rows = (*map(str, written.paths), None, None, None)[:3]
    if as_json:
        print_json(
            "validate",
            {
                "headline": verdict.headline(result),
                "page": page,
                "document": document,
                "rows": rows,
                "kept": str(written.kept) if written.kept else None,
                "references": str(written.references) if written.references else None,
                "refused": [finding.to_json() for finding in written.refused],
                **to_json(result),
            },
        )
        return
    click.echo("\n" + _table(result) + "\n")
    slower = [f for f in result.evidence.findings if f.check == "validate-slow"]
    if shown := [*result.faults, *slower]:
        print_findings(shown, err=False)
        click.echo("")
    click.secho(verdict.headline(result), bold=True)
    if written.paths:
        click.echo(f"report: {page}\n        {document}\n        {rows}")
    if written.references:
        click.echo(f"references of site {result.machine.site}: {written.references}")
    if written.refused:
        print_findings(written.refused)


def _no_report(exc: OSError, output: Path, kept: str) -> Finding:
    """The report's folder is no longer writable; the history may still hold the validation."""
    return error(
        "output-unwritable-saved" if kept else "output-unwritable-rerun",
        filename=exc.filename or output,
        reason=exc.strerror or str(exc),
        kept=kept,
    )


def _table(result: Validation) -> str:
    """A line for each kind of measurement and way, then each slow or wrong line, with its reason."""
    from fairlead.perf.draw.wording import amount, label, name_of
    from fairlead.perf.records.validation import State
    from fairlead.perf.stats import summarize

    states = tuple(State)
    groups: dict[tuple[str, str], Counter[State]] = {}
    bad = []
    for m, v in zip(result.measurements, result.verdicts, strict=True):
        groups.setdefault((m.what.value, name_of(m.way)), Counter())[v.state] += 1
        if v.state in (State.SLOW, State.WRONG):
            times = f" {v.times:.2f} x" if v.times is not None and not math.isnan(v.times) else ""
            median = amount(summarize(m.samples).median, m.unit)
            bad.append((v.state.value + times, label(m), median, v.because))
    head = ("lines", "", *(state.value for state in states))
    counts = [(*key, *(number[s] or "" for s in states)) for key, number in groups.items()]
    text = table([[str(cell) for cell in row] for row in counts], head)
    return text + ("\n\n" + table(bad) if bad else "")


def _dry_run(prepared: Prepared, scope: Options, native: Path | None, as_json: bool) -> int:
    from fairlead.perf.measure.steps import STEPS

    ways = f"in {prepared.image.path}" + (
        f", and natively by {native}" if native else "; natively: not requested (--native)"
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
