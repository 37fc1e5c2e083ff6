"""The command as a process: streams, imports, packages that are missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.runtime.cli.test_cli import call

from fairlead.base.errors import ExitCode


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom fairlead.cli.main import entry\ntry:\n    entry(['--help'])\n"
        "finally:\n    print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "Usage: fairlead" in done.stdout
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "click" in loaded
    heavy = {"pydantic", "rich", "elftools", "numpy", "tomlkit", "archspec", "asyncio", "jinja2"}
    assert not loaded & heavy
    assert "fairlead.swap.plan" not in done.stderr.split()


def test_runtime_imports_nothing_of_the_builder() -> None:
    program = (
        "import pkgutil, importlib, sys, fairlead\n"
        "for m in pkgutil.walk_packages(fairlead.__path__, 'fairlead.'):\n"
        "    if '__main__' not in m.name:\n"
        "        try:\n            importlib.import_module(m.name)\n"
        "        except ImportError:\n            pass\n"
        "print(*[n for n in sys.modules if n.startswith('fairlead_build')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_verb_of_a_group_without_its_group_is_named_with_it() -> None:
    assert "no verb `export`. Did you mean `site export`?" in call("export")[2]
    assert "Did you mean `recipe lock`?" in call("lock", "tensorflow")[2]
    several = call("list")[2]
    assert "`site list`" in several and " or `" in several


def test_group_without_a_verb_of_that_name_says_which_it_has() -> None:
    assert "no verb `rm`. Known: list, prune, remove" in call("images", "rm")[2]
    assert "no verb `lok`. Did you mean `lock`?" in call("recipe", "lok")[2]


def test_unknown_verb_is_answered_where_a_package_of_another_verb_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("fairlead_build")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fairlead_build.cli.recipe", None)
    assert "no verb `export`. Did you mean `site export`?" in call("export")[2]
    assert "no verb `rnu`. Did you mean `run`?" in call("rnu")[2]


def test_output_into_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m fairlead site list | true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr


def test_answer_onto_a_full_disk_is_reported_without_a_traceback() -> None:
    for words in (("--help",), ("site", "list"), ("site", "list", "--json")):
        for unbuffered in ("", "1"):
            with Path("/dev/full").open("w") as full:
                done = subprocess.run(
                    [sys.executable, "-m", "fairlead", *words],
                    stdout=full,
                    text=True,
                    stderr=subprocess.PIPE,
                    env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
                    check=False,
                )
            assert done.returncode == ExitCode.FAILED
            assert "No space left on device" in done.stderr and "next:" in done.stderr
            assert "Traceback" not in done.stderr


def test_closed_streams_keep_the_exit_code() -> None:
    line = f"{sys.executable} -m fairlead inspect nosuch"
    for closed in ("2>&-", "<&- >&- 2>&-"):
        assert subprocess.run(f"{line} {closed}", shell=True, check=False).returncode == 2


def test_working_folder_that_is_gone_is_reported(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        f"rmdir {gone}; {sys.executable} -m fairlead inspect ./x.sif",
        shell=True,
        cwd=gone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.USAGE
    assert "current folder no longer exists" in done.stderr and "Traceback" not in done.stderr


def test_image_that_is_no_file_is_bad_input(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.sif")
    for name, word in (
        (str(tmp_path / "pipe.sif"), "a pipe"),
        ("/dev/null", "a device"),
        ("", "recipe list"),
        (str(tmp_path), "no root file system"),
        ("x" * 5000, "recipe list"),
        ("docker://debian", "fairlead pull docker://docker.io/library/debian:latest"),
        ("library://debian", "neither docker:// nor oras://"),
    ):
        code, _, err = call("inspect", name, env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
        assert code == ExitCode.USAGE and word in err, err


@pytest.mark.parametrize("words", ["report", "report --list", "validate --dry-run"])
def test_verb_that_measures_or_draws_names_a_missing_numpy(words: str) -> None:
    program = (
        "import sys\nsys.modules['numpy'] = None\n"
        "from fairlead.cli.main import entry\nentry(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words.split()], capture_output=True, text=True
    )
    assert done.returncode and done.stderr.startswith("error[report-extra]")
    assert "numpy is not installed" in done.stderr


def test_site_list_show_and_detect_answer_in_json(tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    for words, schema in (
        (("site", "list"), "site-list"),
        (("site", "show", "laptop"), "site"),
        (("site", "detect"), "site-detect"),
    ):
        code, out, err = call(*words, "--json", env=env)
        assert code == 0, err
        said = json.loads(out)
        assert (said["schema"], said["version"]) == (f"fairlead/{schema}", 1)
