"""The quick tests on a machine that nobody prepared: other engines on PATH, one processor, started in the background."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OTHERS = (
    "shifter",
    "sarus",
    "enroot",
    "singularity",
    "podman-hpc",
    "ch-run",
    "docker",
    "srun",
    "flux",
)
STAND_IN = """\
#!/bin/sh
case "$1" in
    *version) echo "NAME 1.2.3" ;;
    *) echo "NAME: not here" >&2; exit 1 ;;
esac
"""
TESTS = (
    "tests/unit",
    "tests/integration",
    "tests/system/test_doctor_conditions.py",
    "tests/system/test_sweeps.py",
    "tests/system/test_recovery.py",
    "tests/system/test_failures.py",  # with its interrupts
)


@pytest.mark.full
def test_quick_tests_pass_with_other_engines_on_one_processor_in_the_background(
    tmp_path: Path,
) -> None:
    programs, results, log = tmp_path / "bin", tmp_path / "results.json", tmp_path / "log"
    programs.mkdir()
    for name in OTHERS:
        (programs / name).write_text(STAND_IN.replace("NAME", name))
        (programs / name).chmod(0o755)
    first = min(os.sched_getaffinity(0))
    words = ["taskset", "-c", str(first), sys.executable, "-m", "pytest", *TESTS, "-q", "-n", "0",
             "-m", "not full", "-p", "no:cacheprovider", f"--results={results}"]  # fmt: skip
    # A shell starts what follows `&` with SIGINT and SIGQUIT ignored, and without a terminal.
    script = f"umask 077; {shlex.join(words)} >{log} 2>&1 </dev/null & wait $!"
    env = {name: value for name, value in os.environ.items() if name != "TERM"}
    env["PATH"] = f"{programs}:{env['PATH']}"
    done = subprocess.run(["sh", "-c", script], cwd=ROOT, env=env, check=False)
    said = log.read_text("utf-8", "replace")
    assert done.returncode == 0, said[-6000:]
    outcomes = json.loads(results.read_text("utf-8"))
    assert outcomes, said[-2000:]
