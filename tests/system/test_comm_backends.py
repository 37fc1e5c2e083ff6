"""Backends of fairlead.comm against each other: the same calls, the same bits, the same words.

Two ranks, so that a sum has one order. Horovod is the real one, of the image of its recipe. Of ``dl_comm``
there is only what documentation shows (``programs/site_plugin``).
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts

import fairlead
from fairlead import native
from fairlead.base.paths import cache_dir

Seen = dict[str, list[Any]]
PLUGIN = hosts.PROGRAMS / "site_plugin"
RUNTIME = Path(fairlead.__file__).parents[1]
PLAIN = ("aggregate", "compressed", "broadcast", "numbers", "started", "delayed", "differ")
# A core of which a team has failed says so again when it is finalized.
LIKE_THE_REFERENCE = (*PLAIN, "differ_behind")
AVERAGING = "import numpy as np\nfrom fairlead import comm\nme = comm.rank()\n"


def _seen(stdout: str) -> Seen:
    seen: Seen = {}
    for line in stdout.splitlines():
        if line.startswith('{"case"'):
            found = json.loads(line)
            seen.setdefault(found["case"], [None, None])[found["rank"]] = found["seen"]
    return seen


def _here(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Two ranks of this Python on the host's MPI."""
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith("FAIRLEAD_COMM_")},
        "LD_LIBRARY_PATH": str(hosts.mpich() / "lib"),
        "PYTHONPATH": str(RUNTIME),
        "FAIRLEAD_COMM_LIBRARY": str(native.ensure(native.CORE, cache_dir())),
        **env,
    }
    return subprocess.run(
        [hosts.mpich() / "bin/mpiexec", "-n", "2", sys.executable, *words],
        capture_output=True, text=True, env=environ, timeout=100, check=False,
    )  # fmt: skip


@cache
def _plain(backend: str) -> tuple[Seen, str]:
    more = {"FAIRLEAD_COMM_DL_COMM": str(PLUGIN)} if backend == "dl_comm" else {}
    cases = PLAIN if backend == "native" else LIKE_THE_REFERENCE
    done = _here(hosts.PROGRAMS / "comm_backends.py", *cases, FAIRLEAD_COMM_BACKEND=backend, **more)
    assert done.returncode == 0, done.stderr
    return _seen(done.stdout), done.stderr


@cache
def _in_image(backend: str) -> tuple[Seen, str]:
    # The reference does one thing at a time: teams cannot be in another order on each rank.
    any_order = () if backend == "mpi4py" else ("teams_in_any_order",)
    cases = PLAIN if backend == "native" else LIKE_THE_REFERENCE
    done = hosts.fairlead(
        "run", "-n", "2", "--comm", backend, "-B", hosts.PROGRAMS, hosts.image("tensorflow-horovod"), "--",
        "python3", hosts.PROGRAMS / "comm_backends.py", *cases, *any_order, "keras_front", limit_s=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return _seen(done.stdout), done.stderr


def _alike(one: Seen, two: Seen, cases: tuple[str, ...]) -> None:
    for case in cases:
        assert one[case] == two[case], case
        assert one[case][0] is not None and one[case][1] is not None, case


def _without_numbers(seen: Any) -> Any:
    """What goes on in the background is counted apart by a carrier that can, so the calls have other numbers."""
    return json.loads(re.sub(r": call \d+ of all", "", json.dumps(seen)))


# --- a site's own dl_comm ---------------------------------------------------------------------


def test_dl_comm_gives_the_references_bits_and_words() -> None:
    by_plugin, output = _plain("dl_comm")
    reference, _ = _plain("mpi4py")
    _alike(by_plugin, reference, LIKE_THE_REFERENCE)
    assert by_plugin["backend"][0] == f"dl_comm 23.09.1 ({PLUGIN / 'dl_comm.py'})"
    averages, barriers = map(int, output.split("site's plugin: ")[1].split()[0:3:2])
    assert (averages, barriers) == (17, 1)


def test_native_and_reference_give_the_same_bits() -> None:
    # The core rounds what goes between nodes only, and names hosts in its words.
    same = tuple(case for case in PLAIN if case not in ("compressed", "differ", "started"))
    _alike(_plain("native")[0], _plain("mpi4py")[0], same)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"PLUGIN_IS_ALONE": "1"}, "the mean of 0 to 1 is 0 by dl_comm's average"),
        ({"FAIRLEAD_COMM_DETERMINISTIC": "1"}, "the order of its sums is its own"),
        ({"FAIRLEAD_COMM_DL_COMM": "/nowhere"}, "there is no module dl_comm in /nowhere"),
    ],
)
def test_dl_comm_that_is_none_is_refused(env: dict[str, str], said: str) -> None:
    settings = {"FAIRLEAD_COMM_BACKEND": "dl_comm", "FAIRLEAD_COMM_DL_COMM": str(PLUGIN), **env}
    done = _here("-c", AVERAGING, **settings)
    assert done.returncode != 0
    assert "dl_comm cannot carry gradients" in done.stderr and said in done.stderr, done.stderr


def test_dl_comm_is_never_fairleads_own_stand_in() -> None:
    program = "from fairlead.comm import dropin\ndropin.install()\n" + AVERAGING
    done = _here("-c", program, FAIRLEAD_COMM_BACKEND="dl_comm", FAIRLEAD_COMM_DL_COMM=str(PLUGIN))
    assert done.returncode != 0
    assert "`dl_comm` is fairlead's stand-in in this program" in done.stderr
    done = _here(
        "-c", program.replace("()", "(['ml_comm', 'horovod'])", 1) + "print(comm.init().backend[:7])",
        FAIRLEAD_COMM_BACKEND="dl_comm", FAIRLEAD_COMM_DL_COMM=str(PLUGIN),
    )  # fmt: skip
    # Two ranks print at once.
    assert (done.returncode, done.stdout.count("dl_comm")) == (0, 2), done.stderr


def _site(folder: Path, text: str) -> Path:
    path = folder / "own.toml"
    path.write_text(
        '[site]\nname = "own"\nsummary = "one with a plugin"\nextends = "laptop"\n'
        '[sources.me]\ntext = "its engineers"\nstatus = "run"\n[comm]\nsource = "me"\n' + text
    )
    return path


def test_dl_comm_of_a_sites_profile_carries_a_launch(tmp_path: Path) -> None:
    site = _site(tmp_path, f'backend = "dl_comm"\nplugin = ["{hosts.PROGRAMS}/site_pl*"]\n')
    program = AVERAGING + "print(comm.init().backend, comm.aggregate([np.full(3, me, 'f4')])[0][0])"
    words = ("-n", "2", "--site", site)
    done = hosts.fairlead(
        "run", *words, hosts.image(), "--", "python3", "-c", program + "\ncomm.finalize()"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"dl_comm 23.09.1 ({PLUGIN}/dl_comm.py) 0.5\n") == 2
    assert "site's plugin: 2 averages" in done.stderr
    output = hosts.answer(hosts.fairlead("explain", "--json", *words, hosts.image()))["comm"]
    assert output["backend"] == "dl_comm" and not output["forced"]
    assert output["why"] == "the profile own says so (seen to work: its engineers)"
    assert output["env"]["FAIRLEAD_COMM_DL_COMM"] == str(PLUGIN)


def test_site_whose_plugin_is_gone_is_reported_and_the_core_carries(tmp_path: Path) -> None:
    site = _site(tmp_path, 'backend = "dl_comm"\nplugin = ["/opt/cray/none/*/lib"]\n')
    done = hosts.fairlead("preflight", "--json", "--site", site, hosts.image())
    output = hosts.answer(done)
    assert (output["comm"]["backend"], output["refused"]) == ("native", False)
    (warned,) = [f for f in output["findings"] if f["check"] == "comm-choice"]
    assert warned["severity"] == "warning"
    assert "not dl_comm as site own prefers" in warned["what"]
    refused = hosts.fairlead("preflight", "--site", _site(tmp_path, 'backend = "dl_comm"\n'), "x")
    assert refused.returncode == 2
    assert "prefers dl_comm but does not say where it is" in refused.stderr


# --- the flag ---------------------------------------------------------------------------------


def test_flag_is_in_plan_line_and_job_script() -> None:
    words = ("-n", "2", "--comm", "mpi4py", hosts.image())
    shown = hosts.fairlead("explain", *words).stdout
    assert "Gradients, by fairlead.comm\n  mpi4py\n      --comm asks for it\n" in shown
    assert "(native: possible; faster within a node, and not asked for)" in shown
    assert "(horovod: not possible; the image has no Horovod that was built with MPI)" in shown
    assert "FAIRLEAD_COMM_BACKEND=mpi4py\n      gradients go by mpi4py: --comm asks for it" in shown
    line = hosts.fairlead("run", "--dry-run", *words, "--", "true").stdout
    assert "FAIRLEAD_COMM_BACKEND=mpi4py " in line
    assert (
        "FAIRLEAD_COMM_BACKEND"
        not in hosts.fairlead("run", "--dry-run", words[-1], "--", "true").stdout
    )
    script = ("script", "--scheduler", "slurm")
    assert " --comm mpi4py " in hosts.fairlead(*script, *words, "--", "true").stdout
    plain = hosts.fairlead(*script, "--plain", "--launcher", "mpiexec", *words, "--", "true")
    assert "FAIRLEAD_COMM_BACKEND=mpi4py " in plain.stdout, plain.stderr


def test_backend_that_cannot_be_had_is_refused_before_launch() -> None:
    done = hosts.fairlead("run", "-n", "2", "--comm", "horovod", hosts.image(), "--", "true")
    assert done.returncode == 121
    assert "horovod cannot carry gradients" in done.stderr
    assert "`fairlead build tensorflow-horovod`, and use it as IMAGE" in done.stderr
    for verb in (
        ("run", "x", "true"),
        ("explain", "x"),
        ("script", "x", "true"),
        ("train", "hepcnn"),
    ):
        done = hosts.fairlead(verb[0], "--comm", "horovd", *verb[1:])
        assert done.returncode == 2 and "Did you mean `horovod`?" in done.stderr, verb
    # Past the refusal, the ranks say it.
    force = ("run", "-q", "-n", "2", "--force", "--comm", "nccl", hosts.image())
    done = hosts.fairlead(*force, "--", "python3", "-c", "from fairlead import comm; comm.init()")
    assert done.returncode == 1
    assert "NCCL is used through torch, and this Python has none" in done.stderr


# --- Horovod, the real one --------------------------------------------------------------------


@pytest.mark.full
def test_horovod_gives_the_references_bits_and_words() -> None:
    by_horovod, _ = _in_image("horovod")
    assert by_horovod["backend"] == ["Horovod 0.28.1"] * 2
    reference = _in_image("mpi4py")[0]
    _alike(_without_numbers(by_horovod), _without_numbers(reference), LIKE_THE_REFERENCE)


@pytest.mark.full
def test_horovod_has_aggregations_in_flight_in_any_order() -> None:
    _alike(_in_image("horovod")[0], _in_image("native")[0], ("teams_in_any_order",))
    assert _in_image("horovod")[0]["teams_in_any_order"] == [[[[3, 1.5], [90001, 0.5]], True]] * 2


@pytest.mark.full
def test_keras_ends_with_the_same_bits_on_all_ranks_by_each_backend() -> None:
    ends = {
        backend: _in_image(backend)[0]["keras_front"] for backend in ("horovod", "native", "mpi4py")
    }
    assert all(match for match, _, _ in ends["horovod"])
    assert ends["horovod"] == ends["native"] == ends["mpi4py"]


# --- tensors on GPUs --------------------------------------------------------------------------


@cache
def _devices() -> Seen:
    done = hosts.fairlead(
        "run", "-q", "-n", "2", "-B", hosts.PROGRAMS, hosts.image("pytorch"), "--",
        "python3", hosts.PROGRAMS / "comm_devices.py", limit_s=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return _seen(done.stdout)


@pytest.mark.full
def test_group_makes_means_and_broadcasts_of_every_dtype() -> None:
    for rank in (0, 1):
        right, bits, started, mean = _devices()["aggregate"][rank]
        assert right == [True] * 7 and started and mean == 0.5
        assert bits == _devices()["aggregate"][0][1]
    assert _devices()["broadcast"] == [[True], [True]]


@pytest.mark.full
def test_group_names_ranks_that_differ_before_anything_moves() -> None:
    host = socket.gethostname()
    other = f"rank 1 ({host}) passed another array 1 (weight 1) to aggregate on GPUs than rank 0 ({host})"
    for rank in (0, 1):
        shape, dtype, number, root, call, after = _devices()["differ"][rank]
        assert shape[1:3] == [other, "rank 1, array 1 (weight 1)"]
        assert shape[3] == "rank 0 has float32 (4,), rank 1 has float32 (5,)"
        assert dtype[3] == "rank 0 has bfloat16 (2,), rank 1 has float32 (2,)"
        assert number[3] == "rank 0 has no array 1 (1 in all), rank 1 has float32 (2,)"
        assert root[1].startswith(f"rank 1 ({host}) called broadcast(root=1) on GPUs while rank 0")
        assert call[0] == "comm-order" and after == [0.5, 0.5]


@pytest.mark.full
def test_torch_front_ends_with_the_same_bits_by_group_and_by_host() -> None:
    for same, calls in _devices()["as_if_on_gpus"]:
        assert same and calls == [6] * 6 + [
            2
        ]  # each step in one call; then the statistics of BatchNorm


@pytest.mark.full
def test_tensors_on_gpus_never_go_through_the_host() -> None:
    for lost, without, forced, reasons in _devices()["no_gpus"]:
        assert reasons == ["Duplicate GPU detected : rank 0", "Connection closed"]
        assert lost[2:] == [
            "weight, device meta",
            "NCCL knows NVIDIA's GPUs, RCCL AMD's, and this is neither",
        ]
        assert without[3].startswith("torch 2.13.0") and without[3].endswith("built without NCCL")
        assert forced[3] == "FAIRLEAD_COMM_BACKEND=mpi4py, which moves the memory of the host"
