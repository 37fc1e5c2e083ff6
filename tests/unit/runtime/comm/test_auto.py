"""What `python3 -m fairlead.comm.auto` patches, and when. On two ranks, with real frameworks: tests/system/test_auto.py."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import fairlead
from fairlead import comm
from fairlead.base.errors import FairleadError
from fairlead.comm.auto import others
from fairlead.comm.auto.imports import AfterImport

NAMES = ("framework_a", "framework_b")


@pytest.fixture
def patched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The modules that were patched, each time that they were; framework_b imports framework_a."""
    for name, text in zip(NAMES, ("part = 1\n", "import framework_a\npart = 2\n"), strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    done: list[str] = []

    def patch(module: ModuleType) -> None:
        assert module.part  # it was executed
        done.append(module.__name__)

    AfterImport(dict.fromkeys(NAMES, patch)).install()
    yield done
    for name in NAMES:
        sys.modules.pop(name, None)


def test_module_that_was_asked_for_before_is_patched_when_imported(patched: list[str]) -> None:
    for _ in range(2):
        spec = importlib.util.find_spec("framework_a")
        assert spec is not None and spec.loader is not None
        # the module's own loader answers what others ask of it
        assert spec.loader.get_filename("framework_a") == spec.origin  # type: ignore[attr-defined]
        assert importlib.util.module_from_spec(spec).__name__ == "framework_a"
    assert patched == []
    module = importlib.import_module("framework_a")
    assert patched == ["framework_a"]
    assert type(module.__loader__).__name__ == type(module.__spec__.loader).__name__  # type: ignore[union-attr]
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    importlib.reload(module)
    assert patched == ["framework_a"] * 2


def test_modules_that_import_each_other_are_each_patched(patched: list[str]) -> None:
    importlib.import_module("framework_b")
    assert patched == ["framework_a", "framework_b"]
    assert importlib.util.find_spec("framework_none") is None


def test_questions_of_another_thread_do_not_hide_a_module(patched: list[str]) -> None:
    finder = sys.meta_path[0]
    assert isinstance(finder, AfterImport)
    finder._asking.name = "framework_a"  # this thread is amid its own question
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(finder.find_spec("framework_a")))
    thread.start()
    thread.join()
    assert found[0] is not None
    assert finder.find_spec("framework_a") is None


def test_module_that_is_there_already_is_patched_at_once(patched: list[str]) -> None:
    sys.modules["framework_a"] = there = ModuleType("framework_a")
    seen: list[ModuleType] = []
    AfterImport({"framework_a": seen.append}).install()
    assert seen == [there] and patched == []


@pytest.mark.parametrize("size", [1, 2])
def test_framework_that_the_script_itself_imports_is_refused_on_many_ranks(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comm, "size", lambda: size)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    script, library = tmp_path / "script", tmp_path / "library"
    for folder in (script, library):
        folder.mkdir()
        monkeypatch.syspath_prepend(folder)
    (library / "jax.py").write_text("")
    (library / "uses_jax.py").write_text("import jax\n")
    (script / "train_jax.py").write_text("import jax\n")
    AfterImport({"jax": lambda module: others.refuse(str(script), module)}).install()
    importlib.import_module("uses_jax")
    del sys.modules["jax"]
    if size == 1:
        importlib.import_module("train_jax")
    else:
        with pytest.raises(FairleadError, match="jax does not train on many ranks") as caught:
            importlib.import_module("train_jax")
        assert caught.value.findings[0].where == str(script / "train_jax.py")
    for name in ("jax", "uses_jax", "train_jax"):
        sys.modules.pop(name, None)


def _alone(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(Path(fairlead.__file__).parents[1])}
    for name in ("PMI_RANK", "PMI_SIZE"):
        environ.pop(name, None)
    line = [sys.executable, "-m", "fairlead.comm.auto", str(script), *words]
    return subprocess.run(
        line, capture_output=True, text=True, env=environ, timeout=60, check=False
    )


def test_script_on_one_rank_gets_its_words_and_its_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, helper; print(sys.argv[1:], helper.value); sys.exit(int(sys.argv[1]))"
    )
    (tmp_path / "helper.py").write_text("value = 5")
    for code in (0, 3):
        done = _alone(script, str(code))
        assert (done.returncode, done.stdout) == (code, f"['{code}'] 5\n"), done.stderr
    missing = _alone(tmp_path / "none.py")
    assert missing.returncode == 1 and "none.py here" in missing.stderr
    assert "usage: python3 -m fairlead.comm.auto SCRIPT" in _alone(Path("-h")).stderr


@pytest.mark.parametrize(("loaded", "check"), [(False, "auto-own-loop"), (True, "auto-framework")])
def test_gradient_outside_of_a_fit_of_keras_3_is_refused_with_the_reason(
    loaded: bool, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensorflow = importlib.import_module("fairlead.comm.auto.tensorflow")
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    if loaded:  # as `tf.keras` with TF_USE_LEGACY_KERAS=1
        monkeypatch.setitem(sys.modules, "tf_keras", ModuleType("tf_keras"))
    tf = SimpleNamespace(nest=SimpleNamespace(flatten=list))
    with pytest.raises(FairleadError) as raised:
        tensorflow._refuse(tf, [SimpleNamespace(trainable=True)], "GradientTape.gradient")
    assert raised.value.findings[0].check == check
    assert raised.value.ag_pass_through  # type: ignore[attr-defined]
