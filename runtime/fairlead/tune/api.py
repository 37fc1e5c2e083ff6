"""Searches from Python: ``fairlead tune`` as a function.

from fairlead.tune.api import search

found = search("train.py", {"rate": {"low": 1e-4, "high": 1.0, "log": True}}, trials=50, image="pytorch")
print(found["result"]["best"], found["best_file"])
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairlead.base import bounded_json
from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity
from fairlead.base.paths import atomic_write
from fairlead.base.process import PYTHON
from fairlead.base.toml_text import value_text


def search(
    script: str | Path, space: Mapping[str, Mapping[str, Any]] | str | Path, *, output: str | Path = "fairlead-tune",
    arguments: Sequence[str] = (), objectives: Mapping[str, Mapping[str, Any]] | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Runs ``fairlead tune``, and returns what its ``--json`` prints.

    Args:
        space: parameters by name with the keys of a space file, or such a file.
        output: folder of the search; the same one goes on.
        arguments: of the script itself.
        objectives: by name; not with a file.
        options: of ``fairlead tune`` by name: ``trials=50``, ``ranks=4``, ``sampler="random"``, ``image="pytorch"``.
    Raises:
        FairleadError: as the command line.
    """
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(space, Mapping):
        path = folder / "space.toml"
        with atomic_write(path, "w") as stream:
            stream.write(_toml({"parameters": space, "objectives": objectives or {}}))
        space = path
    words = ["--space", str(space), "-o", str(folder), "--json", "-q"]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        every = value if isinstance(value, list | tuple) else [value]
        words += [flag] if value is True else [w for item in every for w in (flag, str(item))]
    own = ["--", *arguments] if arguments else []
    line = [*PYTHON, "-m", "fairlead", "tune", str(script), *words, *own]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)
    answer: dict[str, Any] = bounded_json.loads(done.stdout)
    if "exit_code" in answer:  # it was refused
        findings = [
            Finding(**{**f, "severity": Severity(f["severity"])}) for f in answer["findings"]
        ]
        raise FairleadError(findings, ExitCode(answer["exit_code"]))
    return answer


def _toml(tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    lines = []
    for kind, each in tables.items():
        for name, table in each.items():
            lines += [
                f"[{kind}.{json.dumps(name)}]",
                *(f"{k} = {value_text(v)}" for k, v in table.items()),
            ]
    return "\n".join(lines) + "\n"
