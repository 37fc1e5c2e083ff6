"""What happens where a package of an extra is not installed: one sentence with the line to type, at whatever depth
the import is."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from tests.support import every_verb

from fairlead.base.paths import checkout
from fairlead.cli import main as cli

# Each line in a fork, so that what one has imported is not there for the next.
PROGRAM = """
import importlib.abc, json, os, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
lines, hidden = json.loads(sys.argv[1])
sys.meta_path.insert(0, Hidden())
import click
from fairlead.cli.main import entry
for number, line in enumerate(lines):
    if os.fork():
        os.wait()
        continue
    log = os.open(f"{number}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1), os.dup2(log, 2)
    entry(line)
"""
MODULES = {"pillow": "PIL"}


def optional() -> set[str]:
    """Modules that fairlead's command line may do without."""
    declared = [r for r in requires("fairlead") or [] if "extra ==" in r]
    needed = [r for r in declared if not any(e in r for e in ("'dev'", "'docs'", "'models'"))]
    names = {r.replace("[", ">").replace("<", ">").replace("=", ">").split(">")[0] for r in needed}
    return {MODULES.get(name, name) for name in names} | {"yaml"}


def outputs(lines: list[list[str]], hidden: set[str], folder: Path) -> list[str]:
    subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([lines, sorted(hidden)])],
        cwd=folder, check=True, timeout=300, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return [(folder / f"{n}.log").read_text("utf-8") for n in range(len(lines))]


@pytest.mark.parametrize(
    ("hidden", "of"),
    [(optional(), ""), ({"requests"}, "build pull push diff"), ({"numpy"}, "report project")],
    ids=["plain", "requests", "numpy"],
)
def test_no_command_ends_with_a_traceback_where_packages_are_missing(
    hidden: set[str], of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = checkout()
    assert root is not None
    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    names = [name for name, _ in every_verb.commands()]
    assert sorted(every_verb.LINES) == sorted(names), "a line for each command"
    names = [name for name in names if not of or name in of.split()]
    gone = tmp_path / "gone.sif"
    lines = [every_verb.words(name, gone, tmp_path, root) for name in names]
    for name, text in zip(names, outputs(lines, hidden, tmp_path), strict=True):
        assert "Traceback" not in text, f"{name}: {text}"
        if "tool-missing" in text:
            assert "next:  pip install 'fairlead[" in text, f"{name}: {text}"


def test_missing_package_names_the_extra_that_installs_it(tmp_path: Path) -> None:
    root = checkout()
    assert root is not None
    project = ["project", str(root / "benchmarks/results/comm-scaling.json"), "--fabric", "slingshot"]  # fmt: skip
    text, as_json, built = outputs([project, [*project, "--json"], ["recipe", "list"]], {"numpy", "packaging"}, tmp_path)  # fmt: skip
    assert "`fairlead project` needs the Python package `numpy`" in text
    assert "pip install 'fairlead[report]'" in text
    said = json.loads(as_json)
    assert said["exit_code"] == 2 and said["findings"][0]["check"] == "tool-missing"
    assert "`packaging`" in built and "pip install 'fairlead[build]'" in built


def missing(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("module", "remedy"),
    [
        ("cryptography.hazmat", "pip install 'fairlead[sign]'"),
        ("PIL.Image", "pip install 'fairlead[data]'"),
        ("h5py", "pip install 'fairlead[data]'"),
        ("nothing_of_ours", "pip install nothing_of_ours"),
    ],
)
def test_remedy_is_the_line_to_type(module: str, remedy: str) -> None:
    refused = cli._missing_package("fairlead x", missing(module))
    assert refused is not None
    assert refused.findings[0].remedy == remedy


@pytest.mark.parametrize("module", ["fairlead.gone", "fairlead_build.gone", "imaplib", ""])
def test_missing_module_of_fairlead_or_of_python_stays_a_defect(module: str) -> None:
    assert cli._missing_package("fairlead x", missing(module)) is None
