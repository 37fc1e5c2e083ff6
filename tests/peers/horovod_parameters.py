"""The functions of Horovod's fronts and their parameters, read from its source: what the drop-in has to take.

    $ HOROVOD_SOURCE=REPOSITORY python -m tests.peers.horovod_parameters

writes :data:`RECORD`: names and orders of parameters, and nothing else of the source.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

from tests.peers import horovod_suite

from fairlead.base.paths import atomic_write

RECORD = Path(__file__).parents[1] / "recorded/frameworks/horovod-parameters.json"
# By front: the files that define what it has, and the modules of the drop-in that are compared.
FRONTS = {
    "horovod.torch": (
        "torch/__init__.py",
        "torch/mpi_ops.py",
        "torch/functions.py",
        "torch/optimizer.py",
    ),
    "horovod.tensorflow": (
        "tensorflow/__init__.py",
        "tensorflow/mpi_ops.py",
        "tensorflow/functions.py",
    ),
    "horovod.tensorflow.keras": ("tensorflow/keras/__init__.py",),
    "horovod.tensorflow.keras.callbacks": ("tensorflow/keras/callbacks.py",),
}
Table = dict[str, dict[str, list[str]]]


def read(source: Path) -> Table:
    """Of the folder ``horovod`` of its source."""
    return {front: _front(source, files) for front, files in FRONTS.items()}


def _front(source: Path, files: tuple[str, ...]) -> dict[str, list[str]]:
    found = [_functions(ast.parse((source / file).read_text()).body) for file in files]
    return {name: names for each in reversed(found) for name, names in sorted(each)}


def _functions(body: list[ast.stmt]) -> Iterator[tuple[str, list[str]]]:
    """Public functions, and classes by their ``__init__``; those of both branches of a condition."""
    for node in body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, _parameters(node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                    yield node.name, _parameters(inner)[1:]
        elif isinstance(node, (ast.If, ast.Try)):
            yield from _functions([*node.body, *node.orelse])


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]


def main() -> None:
    source = horovod_suite.source()
    assert source is not None, "Horovod's source is out of reach; HOROVOD_SOURCE names a repository"
    with atomic_write(RECORD, "w") as stream:
        stream.write(json.dumps(read(source.parent / "horovod"), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
