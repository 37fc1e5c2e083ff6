"""From the launch to the end of the first step, 2 ranks, taken apart: `fairlead run`, also from an unpacked image, a bare
container, no container, Horovod.

The bundled models run as the ranks of `fairlead train`, on generated files. Natively the same packages, unpacked from the image, run by
this machine's Python. Horovod has no Keras 3: it is compared on a network of ``benchmarks/peers``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.result import (
    FAIRLEAD,
    IMPORTABLE,
    PACKAGE,
    Benchmark,
    Compared,
    Result,
    absolute,
    alternate,
    compare,
)
from benchmarks.sides import PROGRAMS, image
from fairlead import native
from fairlead.base.paths import cache_dir
from fairlead.base.progress import Silent
from fairlead.launch.launch import command_line
from fairlead.launchers import registry as launchers
from fairlead.ml.train import host
from fairlead.ml.train.model import TrainOptions
from fairlead.ml.train.runner import RunOutcome
from fairlead.session.model import Choices
from fairlead.session.prepare import prepare
from fairlead.swap import staging
from fairlead.swap.model import Bind, Request
from fairlead_build.build import build

MODELS = {"hepcnn": "HEP-CNN", "cosmoflow": "CosmoFlow", "resnet50": "ResNet-50"}
ROUNDS, STEPS, NATIVE, RESNET_S = 3, 4, 1.03, 16.5


@dataclass(frozen=True)
class Start:
    """One launch: seconds from it to the end of the first and of the fourth step, of the slower rank, and its parts."""

    first: float
    fourth: float
    parts: Mapping[str, float]


def measure(models: Sequence[str] = tuple(MODELS), rounds: int = ROUNDS) -> Result:
    """Every model in turns; then ResNet-50's parts."""
    rows: list[Compared] = []
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        root = Path(name)
        root.chmod(0o755)
        for model in models:
            sides = {
                key: partial(_launched, root, line)
                for key, line in _lines(root, ("train", str(_config(root, model))), model).items()
            }
            rows += _rows(MODELS[model], alternate(rounds, sides), model == "resnet50")
        nets = {
            "fairlead": partial(
                _launched, root, _run(root, "tensorflow", ("nets", "resnet", "fairlead"))
            ),
            "horovod": partial(
                _launched, root, _run(root, "tensorflow-horovod", ("nets", "resnet", "horovod"))
            ),
        }
        starts = alternate(rounds, nets)
    ours, theirs = ([s.first for s in starts[side]] for side in ("fairlead", "horovod"))
    rows.append(compare("ResNet-50 of the peers, over Horovod", ours, theirs, 1.0))
    rows += _parts("ResNet-50 of the peers", starts)
    what = "from the launch to the end of the first step, 2 ranks on one node, the slower rank"
    return Result("first-step", what, "the same program, launched otherwise", tuple(rows))


def _rows(title: str, starts: Mapping[str, Sequence[Start]], resnet: bool) -> list[Compared]:
    firsts = {side: [start.first for start in each] for side, each in starts.items()}
    rows = [
        compare(
            f"{title}: fairlead run, over no container",
            firsts["fairlead"],
            firsts["native"],
            NATIVE,
        ),
        compare(
            f"{title}: fairlead run --unpack, over no container",
            firsts["unpacked"],
            firsts["native"],
            NATIVE,
        ),
        compare(
            f"{title}: a bare container, over no container", firsts["bare"], firsts["native"], None
        ),
        absolute(f"{title}: launch to the first step's end", firsts["fairlead"], None),
    ]
    if resnet:
        fourths = [start.fourth for start in starts["fairlead"]]
        rows.append(absolute(f"{title}: launch to the first timed step", fourths, RESNET_S))
    return rows + _parts(title, starts)


def _parts(title: str, starts: Mapping[str, Sequence[Start]]) -> list[Compared]:
    """Every part, by side."""
    rows = []
    for side, each in starts.items():
        for name in each[0].parts:
            seconds = [start.parts.get(name, 0.0) for start in each]
            rows.append(absolute(f"{title}, {side}: {name}", seconds, None))
    return rows


def _lines(
    root: Path, words: Sequence[str], model: str
) -> dict[str, Callable[[Path], tuple[list[str], dict[str, str]]]]:
    return {
        "fairlead": _run(root, "tensorflow", words),
        "unpacked": _run(root, "tensorflow", words, "--unpack"),
        "bare": _bare(root, words),
        "native": _native(root, words),
    }


def _program(folder: Path, words: Sequence[str]) -> list[str]:
    return [*IMPORTABLE, "python3", str(PROGRAMS / "first_step.py"), str(folder), *words]


def _run(root: Path, recipe: str, words: Sequence[str], *options: str) -> Any:
    """`fairlead run`."""
    sif = image(recipe)
    if options:  # what is done once
        subprocess.run([*FAIRLEAD, "run", "-q", *options, sif, "--", "true"], check=True)

    def line(folder: Path) -> tuple[list[str], dict[str, str]]:
        binds = [word for place in (root, PACKAGE, cache_dir()) for word in ("--bind", str(place))]
        return [
            *FAIRLEAD,
            "run",
            "-q",
            "-n",
            "2",
            *options,
            *binds,
            sif,
            "--",
            *_program(folder, words),
        ], {}

    return line


def _bare(root: Path, words: Sequence[str]) -> Any:
    """The line that `fairlead run` launches, without it."""
    sif = image("tensorflow")
    plan = prepare(sif, Choices(), Request(ranks=2, command=("python3",))).plan
    native.ensure(native.WITNESS, cache_dir())
    staging.ensure(plan, cache_dir())

    def line(folder: Path) -> tuple[list[str], dict[str, str]]:
        binds = [Bind(str(place), str(place)) for place in (root, PACKAGE, cache_dir())]
        made = command_line(plan, _program(folder, words), 2, binds)
        return list(made.argv), made.environment(dict(os.environ))

    return line


def _native(root: Path, words: Sequence[str]) -> Any:
    """This machine's Python, with the image's packages in a folder."""
    tree = root / "native"
    if not tree.is_dir():
        build("tensorflow", formats=("sandbox",), output=tree)
    plan = prepare(image("tensorflow"), Choices(), Request(ranks=2, command=("python3",))).plan
    assert plan.host is not None
    site = next(tree.glob("**/opt/python/lib/python3.*/site-packages"))
    environ = {"PYTHONPATH": f"{PACKAGE.parent}:{site}", "MPI4PY_LIBMPI": plan.host.library.path}
    environ |= {"PYTHONNOUSERSITE": "1"}

    def line(folder: Path) -> tuple[list[str], dict[str, str]]:
        inner = ["/usr/bin/python3", *_program(folder, words)[len(IMPORTABLE) + 1 :]]
        whole = launchers.words(plan.launcher, plan.request.shape.of(2), inner)
        return list(whole.argv), {**os.environ, **environ, **whole.environ}

    return line


def _launched(root: Path, line: Callable[[Path], tuple[list[str], dict[str, str]]]) -> Start:
    with tempfile.TemporaryDirectory(dir=root) as name:
        folder = Path(name)
        folder.chmod(0o777)
        argv, environ = line(folder)
        begun = time.time_ns()
        done = subprocess.run(
            argv,
            env=environ or None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        ranks = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    if len(ranks) != 2:
        raise RuntimeError(
            f"{argv}: {len(ranks)} ranks\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
        )
    return max((_start(rank, begun) for rank in ranks), key=lambda start: start.first)


def _start(rank: Mapping[str, Any], begun: int) -> Start:
    """Parts of a rank's start that follow one another; what other threads did meanwhile is left out."""
    steps: dict[int, int] = {}
    for name, _, end in rank["parts"]:
        if match := re.match(r"step (\d+)", name):
            steps[int(match[1])] = max(end, steps.get(int(match[1]), 0))
    parts = {"launcher, engine, Python": rank["begun"] - begun}
    last = rank["begun"]
    for name, start, end in sorted(rank["parts"], key=lambda part: part[1]):
        if last < end <= steps[1] and name != "train":
            parts["other"] = parts.get("other", 0) + max(start - last, 0)
            parts[name] = parts.get(name, 0) + end - max(start, last)
            last = end
    seconds = {name: ns / 1e9 for name, ns in parts.items()}
    return Start((steps[1] - begun) / 1e9, (steps[STEPS] - begun) / 1e9, seconds)


def _config(root: Path, model: str) -> Path:
    """The configuration of a training's ranks, on files that are generated now."""
    folder = root / model
    options = TrainOptions(
        model=model, run_dir=folder, val_samples=2, warmup=3, forward_apart=False
    )
    options = replace(options, train_samples=STEPS * options.ranks * options.each)
    folder.mkdir()
    folder.chmod(0o777)
    data = host.generate(_runner, options, Silent())
    _, path = host.configured(options, data, STEPS)
    return path


def _runner(ranks: int, command: Sequence[str], binds: Sequence[Path]) -> RunOutcome:
    words = [word for place in binds for word in ("--bind", f"{place}:{place}:rw")]
    argv = [*FAIRLEAD, "run", "-q", "-n", str(ranks), *words, image("tensorflow"), "--", *command]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return RunOutcome(done.returncode, done.stdout + done.stderr)


BENCHMARKS = (Benchmark("first-step", 155, measure),)
