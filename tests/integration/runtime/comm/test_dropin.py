"""The drop-in names on one rank: the modules, the runner, schedules and sums. Two: tests/system/test_dropin.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairlead
from fairlead.base.errors import FairleadError
from fairlead.comm.core import Comm
from fairlead.comm.dropin import absent, variables
from fairlead.comm.dropin.teams import MOMENTUM, Plugin, Team, schedule_of
from fairlead.comm.mpi import Alone


def ran(*words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(Path(fairlead.__file__).parents[1]), **more}
    for name in ("PMI_RANK", "PMI_SIZE"):
        environ.pop(name, None)
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env=environ,
        timeout=60,
        check=False,
    )


def dropin(*words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    return ran("-m", "fairlead.comm.dropin", *words, **more)


def team() -> tuple[Team, list[str]]:
    said: list[str] = []
    return Team(0, Comm(Alone()), say=said.append), said


@given(
    steps=st.integers(1, 25),
    ksteps=st.integers(-30, 30).filter(bool),
    dtype=st.sampled_from(["f4", "f8"]),
)
def test_delivered_gradients_add_up_to_those_produced(steps: int, ksteps: int, dtype: str) -> None:
    one, _ = team()
    one.configure(ksteps, steps, 0, 0, None)
    produced = [np.array([2.0**step, -step], dtype) for step in range(steps)]
    delivered = [one.gradients([gradient])[0] for gradient in produced]
    assert np.array_equal(sum(delivered), sum(produced))
    assert all(mean.dtype == np.dtype(dtype) for mean in delivered)
    # What a graph was given stays as it is.
    again = [mean.copy() for mean in delivered]
    assert all(np.array_equal(a, b) for a, b in zip(again, delivered, strict=True))


def test_synchronous_until_ksteps_then_late_and_both_at_the_end() -> None:
    one, said = team()
    one.configure(2, 6, 0, 0, None)
    got = [float(one.gradients([np.array([float(step)])])[0][0]) for step in range(8)]
    assert got == [0, 1, 0, 2, 3, 4 + 5, 6, 7]
    assert "those from 2 to 4 get their gradients one step late" in said[0]
    assert sum("gets zeros" in text for text in said) == 1
    assert sum("more steps than its max_steps, 6" in text for text in said) == 1


def test_negative_ksteps_are_synchronous_at_the_end() -> None:
    one, _ = team()
    one.configure(-2, 5, 0, 0, None)
    got = [float(one.gradients([np.array([float(step)])])[0][0]) for step in range(5)]
    assert got == [0, 0, 1, 2 + 3, 4]


def test_program_that_ends_early_is_shown_what_was_not_applied() -> None:
    one, said = team()
    one.configure(1, 10, 0, 0, None)
    for _ in range(4):
        one.gradients([np.ones(1)])
    one.flush()
    assert "ended after 4 of 10 steps, so the mean of its last step was not applied" in said[-1]


def test_reported_momentum_lowers_late_means_only() -> None:
    one, said = team()
    one.configure(2, 5, 0, 0, 0.5)
    got = [float(one.gradients([np.ones(1)])[0][0]) for step in range(4)]
    assert got == pytest.approx([1, 1, 0, 0.5 / 3])
    assert any("at momentum 0.5" in text and "multiplied by that" in text for text in said)


@pytest.mark.parametrize(("ksteps", "steps"), [(0, 10), (1, 0), (-1, -5)])
def test_schedule_that_says_nothing_is_refused(ksteps: int, steps: int) -> None:
    with pytest.raises(FairleadError, match="does not define"):
        schedule_of(ksteps, steps)


def test_two_networks_in_one_late_team_are_refused() -> None:
    one, _ = team()
    one.configure(1, 10, 0, 0, None)
    one.gradients([np.ones(2)])
    with pytest.raises(FairleadError, match="two different lists"):
        one.gradients([np.ones(3)])


@pytest.mark.parametrize(
    ("size", "warned"), [(5, False), (3, False), (4, True), (20, True), (0, True)]
)
def test_model_size_of_two_teams_is_compared_once(
    size: int, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = Plugin(1, 2, size, environ={})
    for _ in range(2):
        plugin.gradients([np.ones(2)], 0)
        plugin.gradients([np.ones(3)], 1)
    assert capsys.readouterr().err.count(f"a model_size of {size}") == int(warned)


def test_team_that_is_configured_and_not_used_is_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plugin = Plugin(1, 2, 2, environ={})
    plugin.configure(1, 1, 10, 0, 0)
    plugin.gradients([np.ones(2)], 0)
    plugin.close()
    said = capsys.readouterr().err
    assert "team 1 was configured, and averaged nothing" in said
    assert "in team 0, 1 calls" in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DL_COMM_DEFAULT_NTHREADS", "0"),
        ("DL_COMM_DEFAULT_NTHREADS", "many"),
        ("DL_COMM_DEFAULT_PREC_LEVEL", "2"),
        (MOMENTUM, "1.5"),
        (MOMENTUM, "x"),
    ],
)
def test_bad_variable_is_refused_with_its_value(name: str, value: str) -> None:
    with pytest.raises(FairleadError, match=f"{name} does not accept `{value}`"):
        Plugin(1, 1, 0, environ={name: value})


def test_variables_without_meaning_are_named() -> None:
    known = {setting.name for setting in variables.IGNORED}
    found = variables.read(dict.fromkeys((*known, "DL_COMM_NEW", "HOME"), "1"))
    assert found.ignored == tuple(sorted({*known, "DL_COMM_NEW"}))


@pytest.mark.parametrize("name", ["run", "spark.keras", "ray", "keras.PartialDistributedOptimizer"])
def test_absence_names_what_there_is_instead(name: str) -> None:
    with pytest.raises(FairleadError) as caught:
        absent.refuse("horovod", name)
    (finding,) = caught.value.findings
    assert finding.check == "comm-dropin-absent"
    assert finding.remedy.startswith("use ")


def test_runner_gives_a_script_its_arguments_path_and_modules(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("HERE = True")
    script = tmp_path / "old.py"
    script.write_text("""
import sys, beside, ml_comm as mc, dl_comm, horovod
from ml_comm import gradients
print(__name__, sys.argv, sys.path[0], mc.get_nranks(), gradients is mc.gradients, __file__)
print(sys.modules["ml_comm"] is mc, dl_comm.__name__, horovod.__name__, "tensorflow" in sys.modules)
mc.finalize()
""")
    done = dropin(script, "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"__main__ {[str(script), '--lr', '0.1']} {tmp_path} 1 True {script}",
        "True dl_comm horovod False",
    ]
    assert done.stderr.count("imports of these names get fairlead.comm.dropin") == 1


def test_runner_runs_a_module(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("import sys, horovod; print(__name__, sys.argv[1:])")
    done = dropin(
        "-m", "old", "--lr", PYTHONPATH=f"{Path(fairlead.__file__).parents[1]}:{tmp_path}"
    )
    assert (done.returncode, done.stdout) == (0, "__main__ ['--lr']\n"), done.stderr
    assert "no module is given" in dropin("-m").stderr


def test_other_ranks_say_nothing(tmp_path: Path) -> None:
    script = tmp_path / "old.py"
    script.write_text("import ml_comm")
    assert dropin(script, SLURM_PROCID="3").stderr == ""


def test_real_module_is_not_replaced_in_silence(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod/__init__.py").write_text("REAL = True")
    script = tmp_path / "old.py"
    script.write_text("import horovod; print(hasattr(horovod, 'REAL'))")
    path = f"{Path(fairlead.__file__).parents[1]}:{tmp_path}"
    done = dropin(script, PYTHONPATH=path)
    assert done.stdout == "False\n", done.stderr
    where = tmp_path / "horovod/__init__.py"
    assert f"the real horovod ({where}) is installed and not used" in done.stderr
    kept = dropin("--only", "ml_comm,dl_comm", script, PYTHONPATH=path)
    assert kept.stdout == "True\n", kept.stderr
    line = "import horovod; from fairlead.comm import dropin; dropin.install()"
    refused = ran("-c", line, PYTHONPATH=path)
    assert refused.returncode == 1
    assert "the real `horovod` is already imported" in refused.stderr


@pytest.mark.parametrize("words", [(), ("--other",), ("no-such-script.py",), ("--only",)])
def test_runner_without_a_script_is_bad_usage(words: tuple[str, ...]) -> None:
    done = dropin(*words)
    assert done.returncode == 2
    assert "usage: python3 -m fairlead.comm.dropin" in done.stderr


def test_help_lists_the_plugins_variables() -> None:
    said = dropin("--help").stdout
    assert all(setting.name in said for setting in (*variables.HONOURED, *variables.IGNORED))


def test_unknown_name_is_refused() -> None:
    done = ran("-c", "from fairlead.comm import dropin; dropin.install(['torch'])")
    assert "no drop-in for `torch`" in done.stderr
