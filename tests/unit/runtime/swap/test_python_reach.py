"""Which of an image's packages a Python program imports, and what preflight says where that is not known."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.compiled import CALLS, MPICH, OPENS, compiled

from fairlead.base.errors import Finding, Severity
from fairlead.elf.facts import ImageFacts
from fairlead.image.scan import scan_tree
from fairlead.session.choose import python_files, python_modules
from fairlead.swap.checks import _in_doubt
from fairlead.swap.model import Bind, Request
from fairlead.swap.reach import Reach, reach

SITE = "/usr/lib/python3/dist-packages"
ALL = {"fits", "misfit", "mpi4py"}
SCRIPTS = {
    "fits": "import fits\n",
    "misfit": "import misfit\n",
    "behind": "import wrapper\n",
    "plugins": "import plugin_user\n",
    "by_name": "import importlib\nimportlib.import_module('misfit.core')\n",
    "branch": "import fits\nif x:\n  import misfit\n",
    "any": "import fits, subprocess\n",
    "local": "import fits, helper\n",
    "none": "print(1)\n",
    "main": "import fits, __main__\n",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with packages for an MPI, others that import them, and scripts."""
    root = tmp_path_factory.mktemp("tree") / "root"
    site = root / SITE.lstrip("/")
    mpich = compiled(root / "usr/lib/libmpich.so.12", MPICH)
    compiled(root / "usr/bin/python3", OPENS)
    for name in sorted(ALL):
        compiled(site / name / "core.cpython-311.so", CALLS, str(mpich), "-Wl,-soname,")
        (site / name / "__init__.py").write_text("from . import core\n")
    files = {
        "wrapper/__init__.py": "def f():\n  from misfit import core\n",
        "plugin_user.py": "from importlib.metadata import entry_points\nall = entry_points()\n",
        "plug-1.0.dist-info/entry_points.txt": "[console_scripts]\nx = fits:main\n[plugins]\na = misfit.core:load\n",
        "tool/__init__.py": "print(1)\n",
    }
    for path, text in files.items():
        (site / path).parent.mkdir(exist_ok=True)
        (site / path).write_text(text)
    app = root / "opt/app"
    app.mkdir(parents=True)
    (app / "other").mkdir()
    for name, text in {
        **SCRIPTS,
        "helper": "import wrapper\n",
        "other/__main__": "import misfit\n",
    }.items():
        (app / f"{name}.py").write_text(text)
    (root / "usr/bin/console").write_text("#!/usr/bin/python3\nimport fits\n")
    (root / "usr/bin/console").chmod(0o755)
    return root


@pytest.fixture(scope="module")
def facts(tree: Path) -> ImageFacts:
    return scan_tree(tree)


def packages(reached: Reach) -> set[str]:
    return {e.path.split("/")[5] for e in reached.files if e.path.startswith(SITE)}


def doubtful(reached: Reach) -> set[str]:
    return {path.split("/")[5] for path in reached.doubts if path.startswith(SITE)}


@pytest.mark.parametrize(
    ("command", "loads", "doubts"),
    [
        ("python3 /opt/app/fits.py", {"fits"}, set()),
        ("python3 -u -X dev /opt/app/fits.py misfit", {"fits"}, set()),
        ("python3 /opt/app/misfit.py", {"misfit"}, set()),
        ("python3 /opt/app/behind.py", {"misfit"}, {"misfit"}),
        ("python3 /opt/app/plugins.py", {"misfit"}, {"misfit"}),
        ("python3 /opt/app/by_name.py", {"misfit"}, {"misfit"}),
        ("python3 /opt/app/branch.py", {"fits", "misfit"}, {"misfit"}),
        ("python3 /opt/app/any.py", ALL, {"misfit", "mpi4py"}),
        ("python3 /opt/app/local.py", {"fits", "misfit"}, {"misfit"}),
        ("python3 /opt/app/none.py", set(), set()),
        ("python3 /opt/app/main.py", {"fits"}, set()),
        ("python3 -m other", {"misfit"}, {"misfit"}),
        ("python3 -m mpi4py /opt/app/fits.py", {"fits", "mpi4py"}, set()),
        ("python3 -m tool", ALL, ALL),
        ("python3 -m pdb /opt/app/fits.py", ALL, ALL),
        ("python3", ALL, ALL),
        ("console", ALL, ALL),
        ("python3 /data/unknown.py", ALL, ALL),
        ("sh -c 'python3 /opt/app/fits.py'", None, None),
    ],
)
def test_python_loads_what_its_script_imports_and_may_load_what_cannot_be_known(
    facts: ImageFacts, command: str, loads: set[str] | None, doubts: set[str] | None
) -> None:
    if loads is None or doubts is None:
        facts = replace(facts, programs={**facts.programs, "/usr/bin/sh": "starts"})
        loads, doubts = {"fits"}, set()
    reached = reach(facts, Request(command=tuple(shlex.split(command))))
    assert (packages(reached), doubtful(reached)) == (loads, doubts)


def test_text_given_by_c_is_read_as_a_script_is(facts: ImageFacts) -> None:
    reached = reach(facts, Request(command=("python3", "-uc", "import fits")))
    assert (packages(reached), doubtful(reached)) == ({"fits"}, set())


@pytest.mark.parametrize(("package", "loads"), [("misfit", set()), ("mpi4py", {"mpi4py"})])
def test_only_package_for_an_mpi_is_not_loaded_by_what_does_not_import_it(
    package: str, loads: set[str], tmp_path: Path
) -> None:
    """Of mpi4py alone that is no question: it works with any MPI."""
    mpich = compiled(tmp_path / "usr/lib/libmpich.so.12", MPICH)
    compiled(tmp_path / "usr/bin/python3", OPENS)
    place = tmp_path / SITE.lstrip("/") / package
    compiled(place / "core.cpython-311.so", CALLS, str(mpich), "-Wl,-soname,")
    (place / "__init__.py").write_text("from . import core\n")
    facts = scan_tree(tmp_path)
    reached = [
        packages(reach(facts, Request(command=("python3", "-c", text))))
        for text in ("import json", f"import {package}", "exec(x)")
    ]
    assert reached == [loads, {package}, {package}]


def test_named_program_without_words_keeps_all(facts: ImageFacts) -> None:
    assert packages(reach(facts, Request(apps=("python3",)))) == ALL


def test_script_of_this_machine_is_read_with_its_modules_and_where_they_are_bound(
    facts: ImageFacts, tmp_path: Path
) -> None:
    (tmp_path / "main.py").write_text("import near\n")
    (tmp_path / "near.py").write_text("import fits\n")
    bound = Bind(str(tmp_path), "/app")
    for word, binds in ((str(tmp_path / "main.py"), ()), ("/app/main.py", (bound,))):
        request = Request(command=("python3", word), binds=binds)
        request = replace(request, python=python_files(request, facts))
        assert packages(reach(facts, request)) == {"fits"}, word


def test_module_that_python_path_finds_on_this_machine_may_import_anything(
    facts: ImageFacts, tmp_path: Path
) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/mine.py").write_text("import misfit\n")
    (tmp_path / "main.py").write_text("import fits, mine\n")
    request = Request(
        command=("python3", str(tmp_path / "main.py")), searched={"PYTHONPATH": "/wheels"},
        binds=(Bind(str(tmp_path / "wheels"), "/wheels"),),
    )  # fmt: skip
    modules = python_modules(request, facts, {"HOME": str(tmp_path)})
    request = replace(request, python=python_files(request, facts), python_modules=modules)
    reached = reach(facts, request)
    assert packages(reached) == ALL and doubtful(reached) == {"misfit", "mpi4py"}
    own = tmp_path / ".local/lib/python3.11/site-packages"
    own.mkdir(parents=True)
    (tmp_path / "wheels/mine.py").rename(own / "mine.py")
    assert python_modules(Request(), facts, {"HOME": str(tmp_path)}) == {"mine": str(own)}


def test_refusal_for_a_file_that_may_not_be_loaded_says_so(facts: ImageFacts) -> None:
    command = ("python3", "/opt/app/branch.py")
    doubts = reach(facts, Request(command=command)).doubts
    (path,) = (path for path in doubts if "misfit" in path)
    finding = Finding(Severity.ERROR, "it lacks symbols", where=path, why="missing: x")
    why = _in_doubt(finding, doubts).why
    assert why.startswith("missing: x; misfit") and "/opt/app/branch.py" in why


def test_image_where_one_package_uses_mpi_is_not_read(tree: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    mpich = compiled(root / "usr/lib/libmpich.so.12", MPICH)
    module = root / SITE.lstrip("/") / "mpi4py/MPI.cpython-311.so"
    compiled(module, CALLS, str(mpich), "-Wl,-soname,")
    (root / "run.py").write_text("import mpi4py\n")
    assert not scan_tree(root).python_imports
