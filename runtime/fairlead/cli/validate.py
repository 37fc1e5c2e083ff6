"""``fairlead validate``: is this machine as fast as it should be, and if not, what is slow?"""

from __future__ import annotations

import datetime
import json
import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.base.errors import (
    ExitCode,
    FairleadError,
    Finding,
    Severity,
    error,
    fail,
    os_error_as,
)
from fairlead.base.paths import atomic_write, cache_dir
from fairlead.base.serde import to_json
from fairlead.base.suggest import suggest
from fairlead.cli import options, show
from fairlead.cli.declare import FILE_HERE, FOLDER, JSON, declared, option
from fairlead.cli.screen import print_findings, print_json, table
from fairlead.cli.staged_data import (
    DataStorage,
    code_of,
    paths,
    results_json,
    staged_data,
)
from fairlead.cli.within import Ready, plan_launch
from fairlead.launch import unpack
from fairlead.ml import registry
from fairlead.objects.url import Url, is_url, parse
from fairlead.proof import nccl
from fairlead.proof.verdict import Proof
from fairlead.session.model import Prepared
from fairlead.session.prepare import refuse
from fairlead.transfer.job import Results

# Most reports are far below 1 MB; the progress files of the ranks come on top.
_REPORT_BYTES = 2 << 20

if TYPE_CHECKING:
    from fairlead.ml.train.runner import Runner
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
wrong; 1 something broke, e.g. a rank was killed; 125 a line is slow; 0 as fast as expected, or
nothing to judge it by. Those of `fairlead run` if nothing could be launched.
"""


@dataclass
class _Written:
    """What came of writing a validation.

    Attributes:
        page, document, rows: of the report.
        kept: its document in the history.
        references: the file of the site's references.
        refused: why some of these could not be written.
    """

    page: Path | None = None
    document: Path | None = None
    rows: Path | None = None
    kept: Path | None = None
    references: Path | None = None
    refused: list[Finding] = field(default_factory=list)


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


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be measured.

    Attributes:
        models: None for those that are usually trained.
        folders: of ``--data``.
    """

    ranks: tuple[int, ...] = option(
        "-n -np --ranks N,N,…",
        "Numbers of ranks to measure at; what is measured once uses the largest.",
        default="1,2",
        multiple=False,
        callback=_counts,
    )
    models: tuple[str, ...] | None = option(
        "--models NAME,…",
        f"Bundled models to train, or `none`.  [default: {','.join(registry.validated())}]",
        callback=_models,
    )
    weak: bool = option(
        "--weak/--strong",
        "Keep the samples per rank (weak) or per step (strong) constant.  [default: weak]",
        default=True,
    )
    folders: tuple[str, ...] = option(
        "--data [MODEL=]DIRECTORY|URL",
        "Train on your own files instead of generated ones; those of a URL (s3://…) are staged to the nodes."
        " Repeatable, once per model.",
    )
    skip_damaged: bool = options.SKIP_DAMAGED
    external_data: bool = options.EXTERNAL_DATA
    quick: bool = option("--quick", "Fewer sizes and steps, and only HEP-CNN; takes minutes.")

    def scope(self, output: Path) -> Options:
        """What is measured.

        Raises:
            click.UsageError: ``--data`` is not of a measured model, or no folder.
        """
        from fairlead.perf.measure.step import Options

        usual = registry.validated()
        usual = usual[:1] if self.quick else usual
        models = usual if self.models is None else self.models
        return Options(
            out=output / "run",
            ranks=self.ranks,
            models=models,
            quick=self.quick,
            cores=len(os.sched_getaffinity(0)),
            strong=not self.weak,
            data={m: d for m, d in _data(self.folders, models).items() if isinstance(d, Path)},
            skip_damaged=self.skip_damaged,
            external_data=self.external_data,
        )

    def urls(self, models: Sequence[str]) -> dict[str, Url]:
        """``--data`` that is in object stores, by model."""
        data = _data(self.folders, models)
        return {model: place for model, place in data.items() if isinstance(place, Url)}


@dataclass(frozen=True, kw_only=True)
class ValidateFlags:
    """How the validation is done, and what becomes of it."""

    native: Path | None = option(
        "--native PYTHON",
        "Also measure without a container, using this Python of the host; it needs mpi4py, and"
        " TensorFlow for models.",
        type=FILE_HERE,
    )
    save_reference: bool = option(
        "--save-reference", "Save the measurements as this site's references."
    )
    save_crowded: bool = option(
        "--save-crowded", "With --save-reference: also save lines whose ranks shared cores."
    )
    save_slow: bool = option(
        "--save-slow", "With --save-reference: also save lines slower than expected."
    )
    despite_load: bool = option(
        "--despite-load", "Judge also while other work keeps the node's cores busy."
    )
    output: Path = option(
        "-o --output", "Folder for the report.", default="fairlead-validation", type=FOLDER
    )
    watchdog: float | None = options.WATCHDOG
    timeline_file: str = options.TIMELINE
    dry_run: bool = option("--dry-run", "Print what would be measured, and launch nothing.")
    as_json: bool = JSON


@click.command(epilog=EPILOG)
@declared
def validate(
    wanted: Wanted,
    asked: options.Nodes,
    image: str = options.image_option(),
    *,
    planning: options.Planning,
    storage: DataStorage,
    flags: ValidateFlags,
) -> int:
    """Measure this machine, judge every result, and explain what is slow.

    Runs doctor's checks; the proof of the swap; start-up by phase; memory and storage; ping-pong,
    allreduce and broadcast with every answer checked; a search for a slow processor, disk or link;
    and training of the bundled models at each number of ranks. Each result is compared with this
    site's references, with what the hardware allows, or with the same run without a container.
    """
    from fairlead.perf.draw.pages import require_tools

    require_tools()
    storage.check(flags.output.absolute())
    from fairlead.perf.draw.compose import facts
    from fairlead.perf.judge.assess import Circumstances, assess
    from fairlead.perf.measure import steps
    from fairlead.perf.measure.step import Context

    output = flags.output.absolute()
    scope = steps.planned(wanted.scope(output), 2 if flags.native else 1)
    ready = plan_launch(image, replace(asked, ranks=max(scope.ranks)), planning, flags)
    prepared, bars = ready.prepared, ready.progress
    gpus = prepared.plan.nccl_ask.gpus and bool(prepared.plan.facts.nccl)
    site = prepared.plan.site
    scope = replace(
        scope,
        network=nccl.expected_of(prepared.plan),
        gpus=gpus,
        performance=site.performance,
        node_local=site.storage.node_local,
    )
    if prepared.refused:
        raise refuse(prepared)
    wish = storage.wish(wanted.urls(scope.models), prepared.plan.site)
    scope = replace(scope, data={**scope.data, **paths(wish)})
    if flags.native:
        _check_native(flags.native, prepared)
    if flags.dry_run:
        lines = [*_steps(prepared, scope, flags.native), *storage.lines(output)]
        return show.dry_run("validate", prepared, lines, flags.as_json)
    _check_writable(output)
    unpack.ensure(prepared.plan, cache_dir(), bars)
    begun, clock = datetime.datetime.now(datetime.UTC).astimezone(), time.monotonic()
    with bars.stage("doctor") as stage:
        problems = _doctor()
        stage.result(f"{len(problems)} findings" if problems else "all is well")
    proofs: list[Proof] = []
    ways = _ways(ready, flags, output / "ranks.log", proofs)
    context = Context(scope, ways, prepared.plan.launcher.kind, bars)
    with storage.around(output, bars) as results:
        with staged_data(wish, ready, planning):
            steps.measure(context)
        around = Circumstances(
            prepared.plan,
            proofs,
            problems,
            flags.despite_load,
            facts(prepared),
            begun,
            time.monotonic() - clock,
        )
        result = assess(scope, context.observations, around)
        written = _write(result, context.observations.runs, output, flags)
    _show(result, written, results, flags.as_json)
    return code_of(_exit_code(result, written, context.observations), results)


def _check_native(python: Path, prepared: Prepared) -> None:
    """Check that the ranks can also run without a container."""
    from fairlead.perf.measure import native as natively

    natively.check(python)
    if prepared.plan.host is None:
        raise fail("validate-native-no-host-mpi")


def _ways(ready: Ready, flags: ValidateFlags, log: Path, proofs: list[Proof]) -> dict[Way, Runner]:
    """What launches ranks, in the container and natively. Launches append to ``proofs``."""
    from fairlead.ml.train.session_runner import runner
    from fairlead.perf.measure import native as natively
    from fairlead.perf.records.validation import Way

    log.unlink(missing_ok=True)
    prepared, host, recorder = ready.prepared, ready.prepared.plan.host, ready.recorder
    in_image = runner(prepared, log, proofs.append, flags.watchdog, recorder)
    ways: dict[Way, Runner] = {Way.CONTAINER if host else Way.IMAGE: in_image}
    if flags.native and host:
        ways[Way.NATIVE] = natively.runner(prepared, host, flags.native, log, recorder)
    return ways


def _exit_code(result: Validation, written: _Written, observed: Observations) -> int:
    from fairlead.perf.judge import verdict

    if observed.stopped:
        return ExitCode.PROOF_FAILED
    measured = any(m.samples for m in observed.measurements)
    if set(observed.codes) == {ExitCode.LAUNCH_FAILED} and not measured:
        return ExitCode.LAUNCH_FAILED
    code = verdict.exit_code(result)
    return ExitCode.FAILED if written.refused and code is ExitCode.DONE else code


def _data(folders: Sequence[str], models: Sequence[str]) -> dict[str, Path | Url]:
    """``--data`` by model."""
    data: dict[str, Path | Url] = {}
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
        if is_url(name):
            data[model] = parse(name)
            continue
        data[model] = folder = Path(name).expanduser().absolute()
        if not folder.is_dir():
            raise click.UsageError(f"--data {text}: there is no folder {folder}")
    return data


def _check_writable(output: Path) -> None:
    """Check, before minutes of measurements, that a report can be written."""
    with os_error_as("output-unwritable-validation", output=output):
        with atomic_write(output / ".room") as stream:
            stream.write(bytes(_REPORT_BYTES))
        (output / ".room").unlink()


def _doctor() -> list[Finding]:
    """The warnings and errors of doctor."""
    from fairlead.doctor.fix import examine
    from fairlead.doctor.registry import ordered
    from fairlead.doctor.world import World

    bad = (Severity.WARNING, Severity.ERROR)
    return [d.finding for d in examine(World(), ordered()) if d.finding.severity in bad]


def _write(
    result: Validation, runs: Mapping[str, Sequence[SmallRun]], output: Path, flags: ValidateFlags
) -> _Written:
    """Write history, report and references. A failure of one does not stop the others."""
    from fairlead.perf.draw.validation_page import write_validation
    from fairlead.perf.judge import references
    from fairlead.perf.projection.small_runs import small_runs_json
    from fairlead.perf.records import history

    written = _Written()
    try:
        written.kept = history.keep(result)
    except FairleadError as exc:
        written.refused += exc.findings
    try:
        written.page, written.document, written.rows = write_validation(output, result)
        for model, runs_of_model in runs.items():  # for `fairlead project`
            with atomic_write(output / f"small-runs-{model}.json", "w") as stream:
                json.dump(small_runs_json(runs_of_model), stream)
    except OSError as exc:
        refused = error(
            "output-unwritable-saved" if written.kept else "output-unwritable-rerun",
            filename=exc.filename or output,
            reason=exc.strerror or str(exc),
            kept=result.id,
        )
        written.refused.append(refused)
    if flags.save_reference:
        try:
            written.references, _ = references.save(
                result, crowded_too=flags.save_crowded, slow_too=flags.save_slow
            )
        except FairleadError as exc:
            written.refused += exc.findings
    return written


def _show(result: Validation, written: _Written, results: Results, as_json: bool) -> None:
    from fairlead.perf.judge import verdict

    headline = verdict.headline(result)
    if as_json:
        own = {"headline": headline, **vars(written), "stage": results_json(results)}
        print_json("validate", {**own, **to_json(result)})
        return
    click.echo("\n" + _table(result) + "\n")
    slower = [f for f in result.evidence.findings if f.check == "validate-slow"]
    if shown := [*result.faults, *slower]:
        print_findings(shown, err=False)
        click.echo("")
    click.secho(headline, bold=True)
    if written.page:
        click.echo(f"report: {written.page}\n        {written.document}\n        {written.rows}")
    if written.references:
        click.echo(f"references of site {result.machine.site}: {written.references}")
    print_findings([*written.refused, *results.findings])


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
    text = table(counts, head)
    return text + ("\n\n" + table(bad) if bad else "")


def _steps(prepared: Prepared, scope: Options, native: Path | None) -> list[str]:
    from fairlead.perf.measure.steps import STEPS

    natively = f", and natively by {native}" if native else "; natively: not requested (--native)"
    steps = [line for step in STEPS for line in step.describe(scope)]
    return [f"in {prepared.image.path}{natively}", *steps, f"report in {scope.out.parent}"]
