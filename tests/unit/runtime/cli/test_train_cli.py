"""The command line of training: a report's commands repeat the run that it tells of."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import click
import pytest
from tests.support.recorded import planned

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.cli.run import run
from fairlead.cli.train import _repeat, train
from fairlead.launch.launch import CommandLine, LaunchResult
from fairlead.launch.run_folder import RankExit
from fairlead.ml.train import session_runner
from fairlead.session.model import Launched, LaunchOptions, Prepared


def repeated(line: str) -> tuple[tuple[str, ...], dict[str, object]]:
    words = shlex.split(line)
    context = train.make_context("train", words)
    return _repeat(context, str(context.params["image"])), context.params


@pytest.mark.parametrize(
    "line",
    [
        "hepcnn",
        "hepcnn -n 4 --epochs 5 --max-seconds 600 --seed 7",
        "hepcnn --mpi container --image tensorflow --json -o 'my report'",
        "hepcnn -B /tmp:/a -B /usr:/b:ro --engine-arg=--nv --train-events 800 --data /tmp",
    ],
)
def test_repeat_is_the_run_itself(line: str) -> None:
    commands, params = repeated(line)
    assert commands[0] == "fairlead build tensorflow"
    program, verb, *words = shlex.split(commands[1])
    assert (program, verb) == ("fairlead", "train")
    again = train.make_context("train", words)
    assert again.params == params


def test_repeat_of_an_image_file_builds_nothing() -> None:
    commands, _ = repeated(f"hepcnn --image {shlex.quote(__file__)}")
    assert len(commands) == 1 and __file__ in commands[0]


def test_env_reaches_the_ranks_of_a_bundled_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options of each launch; what a launch does with them is tested with `fairlead run`."""
    seen: list[LaunchOptions] = []

    class Stop(Exception):
        pass

    def launch(prepared: object, command: object, ranks: int, options: LaunchOptions) -> None:
        seen.append(options)
        raise Stop

    monkeypatch.setattr(session_runner, "launch_proved", launch)
    run = session_runner.runner(
        cast("Prepared", None), tmp_path / "log", lambda proof: None, env={"A": "1"}
    )
    with pytest.raises(Stop):
        run(2, ["python3"], [tmp_path])
    assert seen[0].env == {"A": "1"}
    params = train.make_context("train", shlex.split("hepcnn --env A=1 --env B=x=y")).params
    assert params["env"] == ("A=1", "B=x=y")


def test_options_of_output_and_report_reach_the_run_of_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[click.Context] = []
    monkeypatch.setattr(run, "invoke", seen.append)
    (tmp_path / "own.py").write_text("import numpy\n")
    words = ["--auto", str(tmp_path / "own.py"), "-n", "3", "--image", "x", "--label", "-o", "rep"]
    train.main([*words, "--", "--epochs", "3"], standalone_mode=False)
    [context] = seen
    asked = context.params
    assert (asked["label"], asked["output"], asked["output_dir"]) == (True, Path("rep"), None)
    typed = shlex.split(shlex.join(context.obj))  # what the report says to type again
    assert typed[:2] == ["fairlead", "train"] and typed[-3:] == ["--", "--epochs", "3"]
    again = train.make_context("train", typed[2:])
    first = train.make_context("train", [*words, "--", "--epochs", "3"])
    assert again.params == first.params


def test_sets_of_a_script_have_one_order_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strings are hashed otherwise in each process, unless PYTHONHASHSEED is set."""
    seen: list[click.Context] = []
    monkeypatch.setattr(run, "invoke", seen.append)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    (tmp_path / "own.py").write_text("import numpy\n")
    words = ["--auto", str(tmp_path / "own.py"), "--image", "x"]
    for more in ((), ("--env", "A=1"), ("--env", "PYTHONHASHSEED=7")):
        train.main([*words, *more], standalone_mode=False)
    monkeypatch.setenv("PYTHONHASHSEED", "8")
    train.main(words, standalone_mode=False)
    assert [context.params["env"] for context in seen] == [
        ("PYTHONHASHSEED=0",),
        ("A=1", "PYTHONHASHSEED=0"),
        ("PYTHONHASHSEED=7",),
        (),
    ]
    assert all("PYTHONHASHSEED=0" not in context.obj for context in seen)


def test_failure_of_a_bundled_model_shows_the_log_of_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned()
    plan = replace(plan, request=replace(plan.request, output_dir=str(tmp_path)))
    (tmp_path / "rank.1.log").write_text("first launch\nImportError: no such module\n")
    result = LaunchResult(1, 1, 2, (RankExit("1", 1, 1), RankExit("0", 0, 2)), 1.0, 0)
    launched = Launched(CommandLine(("mpiexec",), {}), result, None)
    monkeypatch.setattr(session_runner, "launch_proved", lambda *words: launched)
    one = session_runner.runner(
        cast("Prepared", SimpleNamespace(plan=plan)), tmp_path / "log", lambda proof: None
    )
    assert "ImportError: no such module" in one(2, ["python3"], []).output


@pytest.mark.parametrize(
    ("typed", "right"),
    [
        ("--auto x.py --lr 0.1 -n 4", "--auto x.py -n 4 -- --lr 0.1"),
        ("--auto=x.py --json -b -n 2 --wd=1 -- more", "--auto=x.py --json -n 2 -- -b --wd=1 more"),
    ],
)
def test_option_of_a_script_is_said_to_follow_two_dashes(typed: str, right: str) -> None:
    with pytest.raises(FairleadError) as raised:
        train.make_context("train", shlex.split(typed))
    (finding,) = raised.value.findings
    assert finding.remedy == f"fairlead train {right}" and raised.value.code is ExitCode.USAGE
    assert finding.why == "a script's own arguments follow `--`"


def test_unknown_option_of_a_bundled_model_is_no_scripts() -> None:
    with pytest.raises(click.NoSuchOption):
        train.make_context("train", ["hepcnn", "--lr", "0.1"])
