"""What the shell completes, asked as bash asks: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import forked

from fairlead.cli.main import main
from fairlead.cli.names import COMPLETED


def completed(line: str, tmp_path: Path) -> list[str]:
    """What bash is offered for the last word of ``line``; each with its kind, ``plain`` or ``file``."""
    by_name = tmp_path / "fairlead/images/by-name"
    by_name.mkdir(parents=True, exist_ok=True)
    for name in ("mpi-base", "mpi-base:openmpi", "my-image"):
        (by_name / f"{name}.json").write_text("{}")
    pulled = tmp_path / "fairlead/images/pulled/by-reference"
    pulled.mkdir(parents=True, exist_ok=True)
    (pulled / "1.json").write_text('{"reference": "docker://registry.example.org/ml/app:1"}')
    (pulled / "2.json").write_text("{}")
    words = line.split(" ")
    environ = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path),
        "_FAIRLEAD_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = forked.fairlead((), environ)
    assert done.stderr == "" and done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fairlead run m", ["plain,mpi-base", "plain,mpi-base:openmpi", "plain,my-image"]),
        ("fairlead run -n 2 my", ["plain,my-image"]),
        ("fairlead inspect mpi-base:", ["plain,mpi-base:openmpi"]),
        ("fairlead run dock", ["plain,docker://registry.example.org/ml/app:1"]),
        ("fairlead images remove dock", ["plain,docker://registry.example.org/ml/app:1"]),
        ("fairlead diff mpi-base my", ["plain,my-image"]),
        ("fairlead validate --image my", ["plain,my-image"]),
        ("fairlead build mpi-base:deb", ["plain,mpi-base:debian-mpich"]),
        (
            "fairlead recipe show pyt",
            ["plain,pytorch", "plain,pytorch-cuda", "plain,pytorch:vision"],
        ),
        ("fairlead recipe new x --from analyt", ["plain,analytics"]),
        ("fairlead train cosmoflow-m", ["plain,cosmoflow-mlperf"]),
        ("fairlead validate --models hepcnn,cosmoflow-m", ["plain,hepcnn,cosmoflow-mlperf"]),
        ("fairlead run --site perl", ["plain,perlmutter"]),
        ("fairlead site show lap", ["plain,laptop"]),
        ("fairlead site check perl", ["plain,perlmutter"]),
        ("fairlead project x --fabric slingshot-1", ["plain,slingshot-10", "plain,slingshot-11"]),
        ("fairlead run ./x", ["file,./x"]),
    ],
)
def test_names_are_completed(line: str, expected: list[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == expected


def test_completion_goes_on_where_a_folder_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_SITES_EXTRA", str(tmp_path / "nowhere"))
    assert completed("fairlead run --site perl", tmp_path) == ["file,perl"]


def test_every_kind_of_name_is_known() -> None:
    for what, names in COMPLETED.items():
        if what != "image":
            assert len(set(names())) > 1, what


def test_help_loads_no_names() -> None:
    program = (
        "import sys\nfrom fairlead.cli.main import main\nimport click, json\n"
        "for verb in ('run', 'train', 'site'):\n    main.get_command(click.Context(main), verb)\n"
        "print(json.dumps(sorted({n.split('.')[0] for n in sys.modules})))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert main.name and not {"numpy", "tomlkit"} & set(json.loads(done.stdout))
