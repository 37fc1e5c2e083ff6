"""What is read from the text of Python files."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from fairlead.base.python_imports import Imports, imports, imports_of


@pytest.mark.parametrize(
    ("text", "sure", "perhaps"),
    [
        ("import a.b, c as d\nfrom e.f import g; import h", {"a", "c", "e", "h"}, set()),
        ("from . import a\nfrom .b import c", set(), set()),
        ("def f():\n  import a", set(), {"a"}),
        ("if x:\n  import a\nelse:\n  import b", set(), {"a", "b"}),
        ("try:\n  import a\nexcept ImportError:\n  a = None", set(), {"a"}),
        ('if __name__ == "__main__":\n  import a', {"a"}, {"__main__"}),
        ("with x:\n  import a", {"a"}, set()),
        ("# import a\nx = 'import b'", set(), set()),
        ("import importlib\nm = importlib.import_module('a.b')", {"importlib"}, {"a"}),
        ("m = __import__('a')", set(), {"a"}),
        ("for n in ('a', 'b.c'): load(n)", set(), {"a", "b"}),
        ("for p in importlib.metadata.entry_points(): p.load()", set(), {"entry_points"}),
    ],
)
def test_names_of_a_text_are_sure_where_every_run_imports_them(
    text: str, sure: set[str], perhaps: set[str]
) -> None:
    read = imports(text)
    assert (set(read.sure), set(read.perhaps), read.unseen) == (sure, perhaps, "")


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nimportlib.import_module(name)", "__import__(n)", "exec(open('a.py').read())", "eval(x)",
        "import runpy", "import subprocess", "import os\nos.system('python3 b.py')", "os.execvp(a, b)", "import pytest",
        "import pkg_resources", "util.spec_from_file_location('a', p)", "asyncio.create_subprocess_exec(a)", "def", "\0",
    ],
)  # fmt: skip
def test_text_that_may_import_anything_says_why(text: str) -> None:
    assert imports(text).unseen


@pytest.mark.parametrize("text", ["model.eval()", "re.compile(p)", "cursor.exec(x)", "path.system"])
def test_methods_of_such_names_are_others(text: str) -> None:
    assert not imports(text).unseen


def test_modules_next_to_a_script_are_read_and_those_elsewhere_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import near, pack\n")
    (tmp_path / "near.py").write_text("import h5py\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/deep.py").write_text("from petsc4py import PETSc\n")
    (tmp_path / "other.py").write_text("import slepc4py\n")
    read = imports_of(tmp_path / "main.py")
    assert {"h5py", "petsc4py"} <= read.names and "slepc4py" not in read.names and not read.unseen
    (tmp_path / "near.py").write_text("import sys\nsys.path.insert(0, '../lib')\nimport common\n")
    assert "sys.path" in imports_of(tmp_path / "main.py").unseen
    (tmp_path / "near.py").write_text("exec(code)\n")
    assert "near.py" in imports_of(tmp_path / "main.py").unseen


def test_text_that_python_warns_of_is_read() -> None:
    with warnings.catch_warnings(action="error"):
        assert imports(r"import h5py; x = '\d'") == Imports(sure=("h5py",))
