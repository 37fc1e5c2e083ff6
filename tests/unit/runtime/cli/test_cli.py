"""The command line: help, names, exit codes and JSON that others build on."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from tests.support import every_verb, forked

from fairlead import __version__
from fairlead.base.errors import ExitCode, Finding, Severity
from fairlead.base.progress import human_bytes
from fairlead.cli.declare import JSON, argument, declared, option
from fairlead.cli.main import SECTIONS, VERBS, entry, main
from fairlead.cli.options import Planning, variables
from fairlead.cli.screen import finding_lines, table
from fairlead.swap.model import Bind, Request

RUN = CliRunner()


def command(verb: str) -> click.Command:
    found = main.get_command(click.Context(main), verb)
    assert found is not None
    return found


def call(*words: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """A whole ``fairlead`` process: (exit code, stdout, stderr)."""
    done = forked.fairlead(words, {**os.environ, **(env or {})})
    return done.returncode, done.stdout, done.stderr


def leaves(group: click.Command, name: str) -> list[tuple[str, click.Command]]:
    if isinstance(group, click.Group):
        return [(f"{name} {sub}", item) for sub, item in group.commands.items()]
    return [(name, group)]


@pytest.mark.parametrize(
    ("words", "verb"),
    [
        ("run -n", "fairlead run"),
        ("recipe lock --upgrade", "fairlead recipe lock"),
        ("report --compare last", "fairlead report"),
        ("--nothing run", "fairlead"),
    ],
)
def test_option_without_its_argument_is_reported_with_its_verb(words: str, verb: str) -> None:
    code, _, said = call(*words.split())
    assert code == 2
    assert f"where: the command line of `{verb}`\nnext:  {verb} --help" in said


def test_exit_codes_never_change_their_meaning() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "DONE": 0,
        "FAILED": 1,
        "USAGE": 2,
        "PREFLIGHT_REFUSED": 121,
        "PROOF_FAILED": 122,
        "LAUNCH_FAILED": 123,
        "WATCHDOG": 124,
        "BELOW_REFERENCE": 125,
        "INTERRUPTED": 130,
    }


@pytest.mark.parametrize("verb", VERBS)
def test_verb_line_in_the_list_is_the_verbs_own(verb: str) -> None:
    found = command(verb)
    assert found.name == verb
    assert VERBS[verb] == found.get_short_help_str(limit=100)


@pytest.mark.parametrize("verb", VERBS)
def test_verb_help_works_and_shows_an_example(verb: str) -> None:
    shown = RUN.invoke(main, [verb, "--help"])
    assert shown.exit_code == 0, shown.output
    assert f"fairlead {verb}" in shown.output.split("\n", 3)[-1], "no example"
    assert "--help" in shown.output


@pytest.mark.parametrize("verb", VERBS)
def test_verb_and_its_parts_all_have_json_and_say_what_they_do(verb: str) -> None:
    for name, item in leaves(command(verb), verb):
        options = {o for p in item.params for o in p.opts}
        assert "--json" in options, name
        assert item.help, name
        for parameter in item.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts}"


@pytest.mark.parametrize("verb", ["run", "train", "build"])
def test_verb_that_launches_or_makes_has_a_dry_run(verb: str) -> None:
    assert "--dry-run" in {o for p in command(verb).params for o in p.opts}


def test_help_lists_every_verb_and_the_exit_codes() -> None:
    shown = RUN.invoke(main, ["--help"]).output
    for verb, line in VERBS.items():
        assert verb in shown and line in shown
    assert all(section in shown for section in SECTIONS)
    for code in (121, 122, 123, 124, 125):
        assert str(code) in shown


def test_unknown_verb_suggests_the_near_one() -> None:
    code, out, err = call("rnu", "x")
    assert code == 2 and out == ""
    assert "no verb `rnu`. Did you mean `run`?" in err
    assert "next:  fairlead --help" in err


def test_script_in_place_of_a_model_is_answered_with_auto(tmp_path: Path) -> None:
    (tmp_path / "my train.py").touch()
    code, _, err = call("train", str(tmp_path / "my train.py"))
    assert code == 2 and f"fairlead train --auto '{tmp_path}/my train.py'" in err


def test_unknown_option_is_bad_usage_as_text_and_as_json() -> None:
    code, _, err = call("run", "--rnaks", "2", "x", "--", "true")
    assert code == 2 and "--rnaks" in err and "fairlead run --help" in err
    code, out, _ = call("run", "--json", "--rnaks", "2", "x", "--", "true")
    said = json.loads(out)
    assert code == said["exit_code"] == 2
    assert (said["schema"], said["version"]) == ("fairlead/error", 1)
    assert said["findings"][0]["check"] == "usage"


def test_error_is_four_lines_and_the_same_in_json(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.sif")
    code, out, err = call("inspect", gone)
    assert code == 2 and out == ""
    first, *others = err.strip().splitlines()
    assert first.startswith("error[image]: ")
    assert [line.split()[0] for line in others] == ["where:", "why:", "next:"]
    code, out, err = call("inspect", "--json", gone)
    said = json.loads(out)
    assert code == said["exit_code"] == 2 and err == ""
    [finding] = said["findings"]
    assert finding["check"] == "image" and finding["where"] == gone and finding["remedy"]


def test_json_of_the_command_itself_is_not_ours(tmp_path: Path) -> None:
    code, out, err = call("run", str(tmp_path / "gone.sif"), "--", "tool", "--json")
    assert code == 2 and out == "" and "gone.sif" in err


def test_version_is_the_packages() -> None:
    assert call("--version")[1].split()[-1] == __version__


def test_nothing_given_shows_help() -> None:
    code, out, err = call()
    assert code == 2 and "Usage: fairlead" in out + err


def test_interrupt_is_130_and_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    module = importlib.import_module("fairlead.cli.inspect")
    monkeypatch.setattr(module, "open_image", interrupted)
    with pytest.raises(SystemExit) as caught:
        entry(["inspect", "x"])
    assert caught.value.code == 130
    assert "interrupted" in capsys.readouterr().err


def request(mpi: str = "host", binds: tuple[str, ...] = (), **more: Any) -> Request:
    return Planning(mpi=mpi, apps=(), binds=binds, engine_args=()).request(1, **more)


def test_request_keeps_what_the_shell_sets_for_the_container() -> None:
    environ = {"APPTAINERENV_LD_LIBRARY_PATH": "/a", "SINGULARITYENV_LD_PRELOAD": "/b.so"}
    asked = request(environ=environ)
    assert (asked.library_path, asked.preload, asked.searched) == ("/a", "/b.so", {})
    both = {"APPTAINERENV_PATH": "/bin", "APPTAINERENV_PYTHONPATH": "/m", "PYTHONPATH": "/here"}
    searched = request(environ=both, variables={"PYTHONPATH": "/given"}).searched
    assert searched == {"PATH": "/bin", "PYTHONPATH": "/given"}
    assert request("/opt/mpi").mpi == "host"
    assert request("container").mpi == "container"


def test_request_binds_are_read_and_checked(tmp_path: Path) -> None:
    given = (f"{tmp_path}", f"{tmp_path}:/data", f"{tmp_path}:/data:ro")
    assert request(binds=given).binds == (
        Bind(str(tmp_path), str(tmp_path)),
        Bind(str(tmp_path), "/data"),
        Bind(str(tmp_path), "/data", True),
    )
    for wrong, words in (
        (f"{tmp_path}/no", "does not exist"),
        (f"{tmp_path}:/x:rx", "`ro` or `rw`"),
        (f"{tmp_path}:data", "begins with /"),
        (":/data", "begins with /"),
    ):
        with pytest.raises(click.UsageError, match=words):
            request(binds=(wrong,))


def test_request_takes_the_search_variables_of_env() -> None:
    shell = {"APPTAINERENV_LD_LIBRARY_PATH": "/shell", "APPTAINERENV_LD_PRELOAD": "/p.so"}
    given = {"LD_LIBRARY_PATH": "/given", "A": "1"}
    found = request(variables=given, environ=shell)
    assert (found.library_path, found.preload) == ("/given", "/p.so")


def test_variables_are_pairs() -> None:
    assert variables(("A=1", "B=x=y", "C=")) == {"A": "1", "B": "x=y", "C": ""}
    for wrong in ("A", "=1"):
        with pytest.raises(click.UsageError, match="NAME=VALUE"):
            variables((wrong,))


def test_finding_lines_are_what_where_why_next() -> None:
    finding = Finding(Severity.ERROR, "it broke", "here", "since\nthis", "do that", "some-check")
    text = click.unstyle(finding_lines(finding))
    assert "it broke" in text.splitlines()[0]
    assert text.splitlines()[1:] == [
        "where: here",
        "why:   since",
        "       this",
        "next:  do that",
    ]


def test_finding_lines_steer_no_terminal() -> None:
    finding = Finding(Severity.ERROR, "key \x1b[2J", "a\u202eb", "one\r\ntwo", "\x07", "c")
    lines = finding_lines(finding).splitlines()
    text = click.unstyle("\n".join(lines))
    assert "key \\x1b[2J" in text and "a\\u202eb" in text and "one\\r" in text and "\\x07" in text


def test_table_aligns_and_bytes_are_powers_of_ten() -> None:
    assert table([("a", "b"), ("long", "c")]) == "a     b\nlong  c"
    assert table([("a\x1b[2J", "b")]) == "a\\x1b[2J  b"
    assert [human_bytes(n) for n in (999, 1000, 1_234_567)] == ["999 B", "1.0 kB", "1.2 MB"]


def test_run_needs_an_image_and_a_command() -> None:
    assert call("run")[0] == 2
    code, _, err = call("run", "image")
    assert code == 2 and "COMMAND" in err


@dataclass(frozen=True, kw_only=True)
class _Declared:
    paths: tuple[str, ...] = option("--path -p DIR", "Folders.")
    count: int = option("--count", "How many.", default=2)
    word: str = option("--word", "A word.")
    plain: bool = option("--plain", "Plainly.")


def test_parameters_and_fields_declare_a_verb_in_order() -> None:
    got: list[object] = []

    @click.command()
    @declared
    def verb(
        image: str,
        as_json: bool = JSON,
        more: str = argument(required=False),
        *,
        size: int = option("-s --size", "How large.", default=3),
        group: _Declared,
    ) -> None:
        got.extend([image, as_json, more, size, group])

    verb.main(["x", "-p", "a", "--path", "b", "--plain"], standalone_mode=False)
    assert got == ["x", False, None, 3, _Declared(paths=("a", "b"), count=2, word="", plain=True)]
    shown = RUN.invoke(verb, ["--help"]).output
    assert shown.index("--size") < shown.index("--path") and "IMAGE [MORE]" in shown
    assert shown.index("--plain") < shown.index("--json")
    assert "-p, --path DIR" in shown and "[default: 2; x>=1]" in shown
    assert shown.index("--path") < shown.index("--count") < shown.index("--word")


@pytest.mark.parametrize("flag", ["-n", "-np", "--ranks"])
@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("run", ["x", "--", "true"]),
        ("explain", ["x", "--", "true"]),
        ("script", ["x", "--", "true"]),
        ("preflight", ["x"]),
        ("train", ["hepcnn"]),
        ("validate", []),
    ],
)
def test_ranks_are_given_as_mpiexec_takes_them(verb: str, flag: str, words: list[str]) -> None:
    for given in ([flag, "3"], *([["-n3"]] if flag == "-n" else [])):
        with command(verb).make_context(verb, [*given, *words]) as context:
            assert context.params["ranks"] in (3, (3,))


def examples(text: str, name: str) -> list[str]:
    """The command lines in the help of a command."""
    lines = re.sub(r" \\\n +", " ", text).splitlines()
    return [line.strip() for line in lines if re.match(rf" +fairlead {name}( |$)", line)]


COMMANDS = [name for name, _ in every_verb.commands()]


@pytest.mark.parametrize("name", sorted({*COMMANDS, *(n.split()[0] for n in COMMANDS)}))
def test_help_has_an_example_that_parses(name: str) -> None:
    shown = RUN.invoke(main, [*name.split(), "--help"], terminal_width=200).output
    lines = examples(shown.partition("Usage:")[2].partition("\n")[2], name)
    assert lines, shown
    for line in lines:
        words = shlex.split(re.split(r" (?:\||>|&&|;|#) |   ", line)[0])[1:]
        made: click.Command = main
        context = click.Context(main)
        while isinstance(made, click.Group):
            found = made.get_command(context, words[0])
            assert found is not None, line
            made, words = found, words[1:]
        try:
            made.make_context(name, words, parent=context)
        except click.BadParameter as exc:
            assert "does not exist" in exc.message, line  # the file of an example
