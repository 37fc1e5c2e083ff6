"""Which functions of the product parse data, and whose: a function that parses what others write has a reader in
:data:`test_readers.READERS`, which is fed damaged inputs, or a test that is named here.

A new parser without either fails here. Whether a reader reaches a function is measured, not stated.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

import pytest
from tests.project.test_hostile_files import ROOT
from tests.project.test_readers import READERS, whole_input

FOLDERS = ("runtime/fairlead", "containers/fairlead_build")
# One worker reads all of the code.
pytestmark = pytest.mark.xdist_group("reading functions")


# Files that this run, or this user's earlier one, wrote for itself; names in them may be any bytes, as \\udcff.
_OWN_JSON = {
    "containers/fairlead_build/check.py": "the second build's answer",
    "containers/fairlead_build/resolve/pip_runner.py": "the request; pip's Python need not have fairlead",
    "containers/fairlead_build/tools/tool_tree.py": "our own tree",
    "containers/fairlead_build/tree/debian_in_sandbox.py": "the request",
    "containers/fairlead_build/tree/in_sandbox.py": "the request",
    "containers/fairlead_build/tree/inside/install.py": "the request; fairlead is not in the tree",
    "containers/fairlead_build/tree/payload.py": "what was written just before",
    "containers/fairlead_build/tree/record.py": "the cache",
    "containers/fairlead_build/tree/source_in_sandbox.py": "the request",
    "containers/fairlead_build/tree/tree.py": "a child's answer",
    "runtime/fairlead/base/bounded_json.py": "the reader itself",
    "runtime/fairlead/base/serde.py": "the cache",
    "runtime/fairlead/bridge/__main__.py": "this session",
    "runtime/fairlead/bridge/client/spark.py": "this session's executors",
    "runtime/fairlead/bridge/sessions.py": "this user's sessions",
    "runtime/fairlead/bridge/timings.py": "this user's sessions",
    "runtime/fairlead/bridge/wire.py": "a side that has proved its token",
    "runtime/fairlead/bridge/worker.py": "this session",
    "runtime/fairlead/cli/screen.py": "a schema of the wheel",
    "runtime/fairlead/doctor/checks/cma.py": "a child's answer",
    "runtime/fairlead/image/mount.py": "a child's answer",
    "runtime/fairlead/image/open.py": "the cache",
    "runtime/fairlead/image/stored.py": "the cache",
    "runtime/fairlead/ml/train/events.py": "this run's ranks; a loss may be NaN",
    "runtime/fairlead/ml/train/host.py": "this run's ranks",
    "runtime/fairlead/ml/train/worker.py": "the host of this run",
    "runtime/fairlead/tune/reporting.py": "this trial's tuner",
    "runtime/fairlead/mpi/host.py": "the cache",
    "runtime/fairlead/notebook/journal.py": "this session; an output may be NaN",
    "runtime/fairlead/perf/measure/native.py": "a child's answer",
    "runtime/fairlead/perf/measure/program.py": "this run's ranks",
    "runtime/fairlead/perf/measure/steps/training.py": "this run's ranks",
    "runtime/fairlead/proof/probe_job.py": "this run's ranks",
    "runtime/fairlead/prove.py": "this run's ranks, which import the standard library only",
    "runtime/fairlead/transfer/folder.py": "this run",
    "runtime/fairlead/transfer/job.py": "this run's nodes",
}
_TEXT_MODES = {"r", "w", "a", "x", "r+", "w+", "a+"}


@cache
def _modules() -> dict[str, ast.Module]:
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8"))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


@cache
def _calls() -> list[tuple[str, ast.Call]]:
    return [
        (path, node)
        for path, module in _modules().items()
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
    ]


def test_json_of_others_is_read_within_bounds() -> None:
    found = {p for p, call in _calls() if ast.unparse(call.func) in ("json.loads", "json.load")}
    assert found - set(_OWN_JSON) == set(), "use fairlead.base.bounded_json"
    assert set(_OWN_JSON) - found == set()


def test_text_does_not_depend_on_the_locale() -> None:
    """Without an encoding, Python takes the locale's: under ISO-8859-1 or C another user's file, or our own, is not read."""
    wrong = []
    for path, call in _calls():
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        if {"encoding", "errors"} & {word.arg for word in call.keywords}:
            continue
        bare = name == "read_text" and not call.args
        bare |= name == "write_text" and isinstance(call.func, ast.Attribute) and len(call.args) < 2
        if name == "open":
            owner = ast.unparse(call.func).removesuffix("open").rstrip(".")
            at = 0 if owner else 1
            given_mode = call.args[at] if call.args[at:] else None
            mode = given_mode.value if isinstance(given_mode, ast.Constant) else None
            if owner not in ("os", "tarfile", "gzip", "Image", "archive", "file", "phases"):
                bare = mode in _TEXT_MODES or given_mode is None
        if bare:
            wrong.append(f"{path}:{call.lineno}: {ast.unparse(call)[:80]}")
    assert wrong == []


# --- what is fed damaged inputs -----------------------------------------------------------------------

_PARSERS = {
    *("bounded_json.loads", "tomllib.loads", "tomllib.load", "pickle.loads", "pickle.load"),
    *("parsedate_to_datetime", "email.utils.parsedate_to_datetime", "csv.reader", "ast.parse"),
}
_ARCHIVES = {"tarfile.open", "zipfile.ZipFile"}
_STRUCTS = {"unpack", "unpack_from", "iter_unpack"}


_RUN, _CACHE, _USER, _CHILD = (
    "this run's own processes",
    "this user's cache",
    "this user's folder",
    "a child's answer",
)
# Modules, or functions, that parse what this user's processes have written for themselves.
OWN = {
    "containers/fairlead_build/base/progress_protocol.py": _CHILD,
    "containers/fairlead_build/build.py": "what was written just before",
    "containers/fairlead_build/distribution/pull_store.py": _CACHE,
    "containers/fairlead_build/formats/images.py:_before": _CACHE,
    "containers/fairlead_build/resolve/pip_solve.py": "pip's report",
    "containers/fairlead_build/tools/tool_tree.py": "our own tree",
    "containers/fairlead_build/tree/inside/bytecode.py": _CHILD,
    "containers/fairlead_build/tree/inside/install.py": "wheels of the lock, in the tree",
    "containers/fairlead_build/tree/payload.py": "our own wheel, and results of builds that left the jail by a stream",
    "containers/fairlead_build/tree/sources.py": "results of builds that left the jail by a stream",
    "containers/fairlead_build/tree/wheel.py": "our own wheel, and the checkout",
    "containers/fairlead_build/tree/wheel_compile.py": _CHILD,
    "runtime/fairlead/base/comm_waits.py": _RUN,
    "runtime/fairlead/base/messages.py": "files of the wheel",
    "runtime/fairlead/base/nccl_sums.py": _RUN,
    "runtime/fairlead/base/seals.py": _CACHE,
    "runtime/fairlead/bridge/client/spark.py": _RUN,
    "runtime/fairlead/bridge/wire.py:Connection._frame": "a side that has proved its token",
    "runtime/fairlead/bridge/wire.py:Connection.receive": "a side that has proved its token",
    "runtime/fairlead/cli/names.py": _CACHE,
    "runtime/fairlead/cli/replay.py": _CHILD,
    "runtime/fairlead/comm/dropin/engine.py": _RUN,
    "runtime/fairlead/comm/dropin/hvd.py": _RUN,
    "runtime/fairlead/comm/frameworks/common.py": _RUN,
    "runtime/fairlead/comm/native_core.py": _RUN,
    "runtime/fairlead/image/contents.py": _CACHE,
    "runtime/fairlead/image/folder.py": _CACHE,
    "runtime/fairlead/launch/leftovers.py": _USER,
    "runtime/fairlead/launch/node.py": _RUN,
    "runtime/fairlead/launch/node_history.py": _USER,
    "runtime/fairlead/launch/nodes.py": _RUN,
    "runtime/fairlead/launch/stacks.py": "the memory of this run's ranks",
    "runtime/fairlead/launch/unpack.py": _USER,
    "runtime/fairlead/notebook/controller.py": _RUN,
    "runtime/fairlead/notebook/rank.py": _RUN,
    "runtime/fairlead/notebook/ranks.py": _RUN,
    "runtime/fairlead/notebook/settings.py": _USER,
    "runtime/fairlead/notebook/variables.py": _USER,
    "runtime/fairlead/objects/sync.py": _USER,
    "runtime/fairlead/record/gather.py": _CACHE,
    "runtime/fairlead/rendezvous/worlds.py": _RUN,
    "runtime/fairlead/serve/runs.py": _USER,
    "runtime/fairlead/serve/tokens.py": _USER,
    "runtime/fairlead/swap/staging.py": _RUN,
    "runtime/fairlead/transfer/__main__.py": _RUN,
    "runtime/fairlead/tune/api.py": _CHILD,
    "runtime/fairlead/tune/jobs.py": _USER,
    "runtime/fairlead/tune/launcher.py": _USER,
    "runtime/fairlead/tune/workers.py": _USER,
}  # fmt: skip
# Functions that another test feeds.
_HOSTILE = "tests/project/test_hostile_files.py"
ELSEWHERE = {
    "containers/fairlead_build/formats/images.py:read_entry": f"{_HOSTILE}::test_index_of_images_of_any_bytes_names_no_image",
    "containers/fairlead_build/importing/containerfile.py:_json_list": "tests/unit/containers/importing/test_importing.py::test_every_line_of_a_definition_is_carried_or_lost",
    "containers/fairlead_build/registry/archive.py:_Members.json": "tests/unit/containers/registry/test_archive.py::test_damaged_archive_is_read_right_or_refused",
    "containers/fairlead_build/registry/archive.py:_extracted": "tests/unit/containers/registry/test_archive.py::test_damaged_archive_is_read_right_or_refused",
    "runtime/fairlead/base/toml.py:read": f"{_HOSTILE}::test_recipe_of_any_bytes_is_read_or_refused",
    "runtime/fairlead/bridge/wire.py:Listener._prove": "tests/unit/runtime/bridge/test_wire.py::test_strangers_are_turned_away",
    "runtime/fairlead/bridge/wire.py:_prove_as_client": "tests/unit/runtime/bridge/test_wire.py::test_a_server_without_the_token_is_not_trusted",
    "runtime/fairlead/image/sif.py:Sif.document": f"{_HOSTILE}::test_sif_of_any_header_and_table_is_read_or_refused",
    "runtime/fairlead/image/sif.py:_header": f"{_HOSTILE}::test_sif_of_any_header_and_table_is_read_or_refused",
    "runtime/fairlead/image/sif.py:_objects": f"{_HOSTILE}::test_sif_of_any_header_and_table_is_read_or_refused",
    "runtime/fairlead/image/signature.py:parse": f"{_HOSTILE}::test_signature_of_any_bytes_is_read_or_refused",
}  # fmt: skip


def _parses(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if name in _ARCHIVES:
        modes = [*(k.value for k in call.keywords if k.arg == "mode"), *call.args[1:2]]
        return not any(isinstance(m, ast.Constant) and str(m.value)[0] in "wa" for m in modes)
    owner, _, method = name.rpartition(".")
    struct = method in _STRUCTS and (
        owner == "struct" or owner.rpartition(".")[2].isupper() or owner == "layout"
    )
    return name in _PARSERS or struct


def _functions(module: ast.Module) -> Iterator[str]:
    """The functions of a module that parse data, by ``co_qualname``."""

    def walk(node: ast.AST, names: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from walk(child, (*names, child.name, "<locals>"))
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, (*names, child.name))
            else:
                if isinstance(child, ast.Call) and _parses(child):
                    yield ".".join(names).removesuffix(".<locals>")
                yield from walk(child, names)

    return walk(module, ())


@cache
def _reached() -> set[str]:
    """The functions that the readers of :mod:`test_readers` run for whole inputs."""
    files: dict[str, str] = {}
    names: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)):
            file = files.setdefault(
                code.co_filename, Path(code.co_filename).relative_to(ROOT).as_posix()
            )
            names.add(f"{file}:{code.co_qualname}")

    for reader in READERS:
        whole = whole_input(reader.name)
        with tempfile.TemporaryDirectory() as folder:
            before = sys.getprofile()
            threading.setprofile(note)
            sys.setprofile(note)
            try:
                reader.try_one(Path(folder), whole)
            finally:
                sys.setprofile(before)
                threading.setprofile(None)
    return names


def test_every_function_that_parses_what_others_write_is_fed_damaged_inputs() -> None:
    parsing = {
        f"{path}:{name}" for path, module in _modules().items() for name in _functions(module)
    }
    excused = {f for f in parsing if f in OWN or f.partition(":")[0] in OWN or f in ELSEWHERE}
    assert parsing - _reached() - excused == set(), "add a reader to tests/project/test_readers.py"
    unused = {
        k
        for k in {*OWN, *ELSEWHERE}
        if k not in parsing and k not in {f.partition(":")[0] for f in parsing}
    }
    assert unused == set()
    assert ({*ELSEWHERE} & _reached()) == set()


@pytest.mark.parametrize("test", sorted(set(ELSEWHERE.values())))
def test_named_test_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text("utf-8")
