"""Runs each example as its own head says: the lines that begin with ``$``."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.support.object_stores import swift
from tests.system import hosts
from tests.system.registries import registry


def _commands(example: str) -> list[str]:
    """What the example's head tells to type."""
    found = re.findall(
        r"^ ?(?:#|//|\*)? *\$ (.+)$", (hosts.ROOT / "examples" / example).read_text(), re.MULTILINE
    )
    assert found, f"{example} does not say how it is run"
    return found


def _run(command: str) -> str:
    done = hosts.typed(command)
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def base_image() -> None:
    _run("fairlead build mpi-base")


def test_data_set_in_a_bucket_is_published_used_and_brought_back(base_image: None) -> None:
    (command,) = _commands("object_store.sh")
    with swift() as store:
        store.make_bucket("lab")
        settings = shlex.join(f"{name}={value}" for name, value in store.variables().items())
        said = _run(f"export {settings}; {command}")
    assert "the sum of the numbers in s3://lab/numbers is 28" in said


def test_hello_on_host_mpi_then_on_the_images_agrees(base_image: None) -> None:
    on_host, on_own = map(_run, _commands("hello_mpi.py"))
    assert "MPICH 3.4.3 of the image ->" in on_host
    assert on_own.count("of 2: MPICH Version: 3.4.3") == 2
    assert "of 2: MPICH Version: 3.4.3" not in on_host
    for said in (on_host, on_own):
        assert "allreduce over 2 ranks: 3, as expected" in said


def test_nccls_plugin_carries_a_pattern_and_a_broken_one_is_named(tmp_path: Path) -> None:
    (command,) = _commands("nccl_wire.py")
    source, plugin = hosts.ROOT / "tests/support/net_plugin.c", tmp_path / "libnccl-net.so"
    command = command.replace("build/libnccl-net.so", str(plugin))
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", source, "-o", plugin], check=True)
    said = _run(command)
    assert f"Test from {plugin}, interface v8, 2 network devices on " in said
    assert "0.42 GB moved" in said
    plugin.write_bytes(plugin.read_bytes()[:1000])
    done = hosts.typed(command)
    assert (
        done.returncode == 122
        and "error: the plugin ended its process in stage `load`" in done.stdout
    )


def test_ranks_that_spython_starts_run_on_the_hosts_mpi(base_image: None) -> None:
    (command,) = _commands("spython_client.py")
    said = _run(command)
    for rank in (0, 1):
        assert f"rank {rank} of 2: MPICH Version: 5." in said
    assert said.count(", sum 3") == 2


def test_gradients_in_shared_memory_have_the_same_means(base_image: None) -> None:
    (command,) = _commands("shared_gradients.py")
    said = _run(command)
    assert re.search(
        r"^copied: 20 MB in .* ms$.*^in place: 20 MB in .* ms$", said, re.MULTILINE | re.DOTALL
    )
    assert "16384 kB and more, copied: chunks of" in said


def test_average_gradients_on_two_ranks_ends_with_the_same_bits(base_image: None) -> None:
    (command,) = _commands("average_gradients.py")
    assert "the same bits on 2 rank(s)" in _run(command)
    alone = _run(command.replace("-n 2", "-n 1"))
    assert "the same bits on 1 rank(s)" in alone


@pytest.mark.full  # docs/howto/old-scripts.md has the same line, which is always run
def test_script_for_the_old_plugin_runs_as_it_is() -> None:
    _run("fairlead build tensorflow")
    (command,) = _commands("old_plugin_script.py")
    said = _run(command)
    assert "mean error over 2 rank(s): 0.000000" in said
    assert "variables are rank 0's on every rank" in said


@pytest.mark.full  # tests/system/test_trainer.py kills one, and is always run
def test_training_that_is_cut_goes_on_with_the_same_bits() -> None:
    _run("fairlead build tensorflow")
    (command,) = _commands("train_resume.sh")
    done = hosts.typed(command, limit_s=900)
    assert done.returncode == 0, done.stdout
    assert "the same bits on all ranks, cut or not" in done.stdout
    assert re.search(r"went on after step [1-9]\d* of 50", done.stdout)


def test_delayed_gradients_reach_the_truth_and_say_what_the_delay_does(base_image: None) -> None:
    (command,) = _commands("delayed_gradients.py")
    said = _run(command)
    error = re.search(r"largest error (\S+); the same weights on all ranks: True; by native", said)
    assert error and float(error[1]) < 1e-6, said
    assert said.count("gradients are applied one step late from here") == 1


def test_trace_of_a_run_has_ranks_their_own_phases_and_the_host(base_image: None) -> None:
    (command,) = _commands("trace.sh")
    said = _run(command)
    rows = dict(re.findall(r"^(\S+(?: \d+)? \(\S+\) +\S.*?) +([\d.]+) ms$", said, re.MULTILINE))
    spent = {re.sub(r" \(\S+\) +", " ", name): float(ms) for name, ms in rows.items()}
    assert spent["rank 0 simulate"] >= 50 and spent["rank 1 simulate"] >= 100
    for name in ("plan", "run", "launcher and engine", "until every rank is proved"):
        assert spent[f"fairlead {name}"] > 0, said
    assert spent["rank 0 aggregate (mean)"] > 0


@pytest.mark.full
@pytest.mark.parametrize(("framework", "recipe"), [("keras", "tensorflow"), ("torch", "pytorch")])
def test_serial_script_learns(framework: str, recipe: str) -> None:
    """Its distributed twin is run by docs/tutorials/training.md."""
    _run(f"fairlead build {recipe}")
    (command,) = _commands(f"{framework}_serial.py")
    (accuracy,) = re.findall(r"^accuracy (0\.\d+)$", _run(command), re.MULTILINE)
    assert float(accuracy) > 0.85


@pytest.mark.parametrize(
    ("example", "said"),
    [("comm.c", "the same weights on every rank, -0.825; mean loss 0.5"), ("comm.cpp", "2 ranks: 0.5 and 1.0")],
)  # fmt: skip
def test_collectives_from_c_are_compiled_without_an_mpi_and_run(
    example: str, said: str, base_image: None
) -> None:
    (command,) = _commands(example)
    assert said in _run(command).splitlines()


def test_script_with_the_dry_run_line_runs_that_line(base_image: None) -> None:
    (command,) = _commands("run.sh")
    line, _, output = _run(command).partition("\n\n")
    assert "mpiexec" in line and " exec " in line and line.endswith("examples/hello_mpi.py")
    assert "allreduce over 2 ranks: 3, as expected" in output


@pytest.mark.full
def test_engines_that_are_here_are_proved_and_timed(base_image: None) -> None:
    (command,) = _commands("engines.sh")
    said = _run(command)
    assert said.count("proved on 2 ranks, 1 node: MPICH Version: 5.0.2") == 3, said
    assert len(re.findall(r"^(?:apptainer|podman|charliecloud): \d+ ms$", said, re.MULTILINE)) == 3


def test_prove_of_a_line_that_anybody_may_start(base_image: None) -> None:
    (command,) = _commands("prove.sh")
    assert "fairlead: proved on 2 ranks, 1 node: MPICH Version: 5.0.2" in _run(command)


def test_exports_are_written_and_apptainers_is_enough_without_fairlead(base_image: None) -> None:
    (command,) = _commands("export.sh")
    said = _run(command)
    assert "proved on 2 ranks" in said and "from /opt/fairlead/mpi/lib/libmpi.so.12" in said
    assert "/shifter/module.conf" in said and "/sarus/hooks.d/05-mpi-hook.json" in said


def test_staged_data_is_read_and_results_come_back(base_image: None) -> None:
    (command,) = _commands("stage.sh")
    said = _run(command)
    assert "staging in: 21.0 MB in 4 files" in said and "staging out" in said
    assert said.endswith("and 4 results came back\n")


def test_image_by_way_of_a_registry_runs_under_its_digest(base_image: None) -> None:
    (command,) = _commands("registry.sh")
    with registry() as shore:
        said = _run(command.replace("registry.example.org", shore.host))
        assert f"docker://{shore.host}/ml/mpi-base:1@sha256:" in said
    assert "allreduce over 2 ranks: 3, as expected" in said


def test_script_that_compares_formats_finds_one_tree(base_image: None) -> None:
    (command,) = _commands("same_image.sh")
    said = _run(command)
    assert "same tree, wrapped in another way" in said
    assert '"purl": "pkg:pypi/mpi4py@4.1.' in said
    assert '"org.fairlead.tree.sha256":"' in said


def test_signed_image_runs_and_an_unsigned_or_changed_one_does_not(base_image: None) -> None:
    (command,) = _commands("signed.sh")
    said = _run(command)
    assert "error[signature-missing]" in said and "unsigned: exit code 121" in said
    assert "signed with key" in said and "allreduce over 2 ranks: 3, as expected" in said
    assert "error[signature-mismatch]" in said and "changed: exit code 1" in said


def test_recorded_run_is_verified_by_openssh_and_repeated(base_image: None) -> None:
    (command,) = _commands("record/record.sh")
    said = _run(command)
    assert 'Good "fairlead-run-record" signature for me@example.org' in said
    assert "same: exit code 0, 1 result byte for byte" in said
    assert "input: seed.txt: sha256" in said and "another seed: exit code 121" in said
    assert "differs: walk.npy" in said and "its result: exit code 1" in said
    assert "error[record]" in said and "changed: exit code 2" in said


def test_own_recipe_is_sound_and_locked() -> None:
    check, *_ = _commands("my-recipe/recipe.toml")
    assert "its lock matches it" in _run(check)


def test_definition_of_others_is_imported_with_its_losses_listed() -> None:
    (command,) = _commands("analysis.def")
    said = _run(command)
    assert 'apt = ["python3", "python3-pip", "mpich"]' in said
    assert said.count("[import-loss]") == 2


@pytest.mark.full
def test_own_recipe_is_built_and_run() -> None:
    """A tree of its own: some 40 s on two cores, hence not in every run."""
    *_, build, run = _commands("my-recipe/recipe.toml")
    assert re.search(r"^(built|unchanged): my-recipe, ", _run(build), re.MULTILINE)
    assert "mean over 2 rank(s): 0.5" in _run(run)


@pytest.mark.full
def test_image_with_what_trains_on_pytorch_is_built_and_trains_with_deepspeed() -> None:
    build, run = _commands("trainers/recipe.toml")
    assert re.search(r"^(built|unchanged): trainers, ", _run(build), re.MULTILINE)
    said = _run(run)
    assert (
        "equal weights on 2 ranks" in said and "one world of 2, 1 node: torch.distributed" in said
    )


@pytest.mark.full
def test_ray_trains_on_the_cluster_of_a_launch() -> None:
    _run("fairlead build examples/trainers")
    (command,) = _commands("ray_cluster.py")
    said = _run(command)
    assert "trained on 2 workers" in said and "one world of 2, 1 node: torch.distributed" in said


def test_own_site_profile_is_shown_and_listed() -> None:
    show, listed = _commands("my-site.toml")
    said = _run(show)
    assert re.search(r"^  search +run \[\d+\] +my-site +/opt/mpich/\*/lib$", said, re.MULTILINE)
    assert re.search(r"^  accepts +documented \[\d+\] +infiniband +verbs, ", said, re.MULTILINE)
    assert re.search(r"^my-site +infiniband ", _run(listed), re.MULTILINE)
    (compared,) = _commands("my-gpu-site.toml")
    disagree = "NCCL_CROSS_NIC  contradiction: within my-gpu-site\n"
    both = "  0  set by my-gpu-site [1]\n  1  stated by my-gpu-site [2]\n"
    assert f"{disagree}{both}" in _run(compared)


def test_images_are_asked_about_a_machine_by_its_capture(base_image: None) -> None:
    (command,) = _commands("preflight_elsewhere.sh")
    said = _run(command)
    assert "mpi-base: Will it run? yes: MPICH 3.4.3 of the image ->" in said


def test_doctor_of_two_nodes_names_what_only_one_has() -> None:
    (command,) = _commands("doctor.sh")
    assert "only there: mpi-variables: I_MPI_FABRICS=shm breaks runs" in _run(command)


def test_new_machine_is_described_checked_and_captured(tmp_path: Path) -> None:
    (command,) = _commands("new_machine.sh")
    said = _run(command.replace("$(mktemp -d)", str(tmp_path)))
    folder = tmp_path / "my-machine"
    assert "my-machine: What fairlead saw of" in said
    assert "my-machine against" in said and ", 0 differ," in said
    assert {p.name for p in folder.iterdir()} == {"seen.txt", "sites", "here.json"}


@pytest.mark.full
@pytest.mark.alone  # it gives no verdict next to other work
def test_validation_is_kept_and_compared(
    base_image: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(hosts.READER, "XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setitem(hosts.READER, "FAIRLEAD_SITES_EXTRA", str(tmp_path / "sites"))
    (tmp_path / "sites").mkdir()
    (command,) = _commands("validate.sh")
    said = _run(command)
    assert "allreduce" in said and list((tmp_path / "sites").glob("*.references.json"))


@pytest.mark.full  # tests/system/test_bench_peers.py has every peer
def test_peers_are_compared_and_read_by_a_program() -> None:
    (command,) = _commands("bench_peers.sh")
    done = hosts.typed(command, limit_s=1200)
    assert done.returncode == 0, done.stdout
    for name in ("alone", "fairlead", "mirrored", "ps-1"):
        assert re.search(rf"^{name} right \S+ samples/s$", done.stdout, re.MULTILINE), name


def test_ranks_that_save_outlive_a_failure(base_image: None) -> None:
    (command,) = _commands("outlive_failures.py")
    said = _run(command)
    assert "goes on after step 3" in said and "90 after 10 steps" in said
    assert "restart 1 of 2" in said
