"""The verdict on what the processes of frameworks report."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.base.errors import ExitCode, FairleadError, Finding
from fairlead.rendezvous import worlds
from fairlead.rendezvous.worlds import World, Worlds
from fairlead.swap.model import RUN_MOUNT

HOOK = Path(worlds.__file__).parent / worlds.HOOK / "sitecustomize.py"


def report(folder: Path, kind: str, launched: int, **values: Any) -> Path:
    said = {
        "framework": "torch", "launched": str(launched), "pid": 100 + launched, "host": f"n{launched}", "round": 1,
        "address": "10.0.0.1:2000", "why": "", **values,
    }  # fmt: skip
    path = folder / f"{kind}.{said['framework']}.{launched}.{said['pid']}.{said['round']}"
    path.write_text(json.dumps(said))
    return path


class Watched:
    """A launch of two ranks that is watched."""

    def __init__(self, folder: Path, ranks: int = 2):
        self.formed: list[World] = []
        self.findings: list[Finding] = []
        self.worlds = Worlds(folder, ranks, self.formed.append, self.findings.append)

    def wrong(self) -> Finding:
        with pytest.raises(FairleadError) as raised:
            self.worlds.look(last=True)
            self.worlds.look(last=True)
        assert raised.value.code is ExitCode.PROOF_FAILED
        (finding,) = raised.value.findings
        return finding


def test_world_is_whole_once_every_rank_has_joined(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for rank in (0, 1):
        report(tmp_path, "joining", rank, rank=rank, size=2)
    report(tmp_path, "joined", 0, rank=0, size=2, by="gloo")
    watched.worlds.look(last=True)
    assert not watched.formed
    report(tmp_path, "joined", 1, rank=1, size=2, by="gloo")
    watched.worlds.look(last=True)
    watched.worlds.look(last=True)
    assert watched.formed == [World("torch", 2, ("n0", "n1"), "gloo")]


def test_workers_of_agents_form_a_larger_world(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for worker in range(4):
        report(tmp_path, "joined", worker // 2, pid=worker, rank=worker, size=4)
    watched.worlds.look(last=True)
    assert [world.size for world in watched.formed] == [4]


@pytest.mark.parametrize("joined", [0, 1])
def test_rank_that_waits_for_more_than_have_met_is_named_whichever_was_seen_first(
    tmp_path: Path, joined: int
) -> None:
    watched = Watched(tmp_path)
    for rank in (0, 1):
        report(tmp_path, "joining", rank, rank=rank, size=2 if rank == joined else 3)
    watched.worlds.look()
    report(tmp_path, "joined", joined, rank=joined, size=2, by="gloo")
    assert watched.wrong().what == "torch.distributed has two sizes: 3 and 2"


def test_look_that_took_long_by_the_clock_does_not_put_off_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine, where a look of a millisecond may last seconds."""
    watched = Watched(tmp_path)
    clock = [0.0]

    def slow(self: Worlds) -> list[Any]:
        clock[0] += 3.0
        return looked(self)

    looked = Worlds._new
    monkeypatch.setattr(Worlds, "_new", slow)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    watched.worlds.look()
    for rank in (0, 1):
        report(tmp_path, "joined", rank, rank=rank, size=2, by="gloo")
    clock[0] += 1.0
    watched.worlds.look()
    assert watched.formed


def test_second_world_of_the_same_processes_may_number_them_anew(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for rank in (0, 1):
        report(tmp_path, "joined", rank, rank=rank, size=2)
    watched.worlds.look(last=True)
    for rank in (0, 1):
        os.utime(report(tmp_path, "joined", rank, rank=1 - rank, size=2, round=2), (9, 9 + rank))
        watched.worlds.look(last=True)


@pytest.mark.parametrize(
    ("reports", "what"),
    [
        ([{"rank": 0, "size": 1}, {"rank": 0, "size": 1}], "a world of one, on each of 2 ranks"),
        ([{"rank": 0, "size": 2, "agent": True}, {"rank": 0, "size": 2, "agent": True}], "torchrun was started on each of 2 ranks"),
        ([{"rank": 0, "size": 2}, {"rank": 0, "size": 2}], "two processes with the number 0"),
        ([{"rank": 0, "size": 2}, {"rank": 1, "size": 3}], "two sizes: 3 and 2"),
        ([{"rank": 0, "size": 2}, {"rank": 1, "size": 2, "address": "10.0.0.2:9"}], "two rendezvous: 10.0.0.2:9 and 10.0.0.1:2000"),
        ([{"rank": 0, "size": 2, "why": "it does not resolve"}], "cannot meet at 10.0.0.1:2000"),
        # The port is taken by the other process with that number.
        ([{"rank": 0, "size": 2, "why": "port 2000 is not free there"}, {"rank": 0, "size": 2}], "the number 0"),
    ],
)  # fmt: skip
def test_wrong_world_is_named_before_it_trains(
    reports: list[dict[str, Any]], what: str, tmp_path: Path
) -> None:
    watched = Watched(tmp_path)
    for launched, values in enumerate(reports):
        report(tmp_path, "joining", launched, **values)
    assert what in watched.wrong().what


def test_world_that_leaves_ranks_out_is_wrong(tmp_path: Path) -> None:
    watched = Watched(tmp_path, ranks=4)
    for rank in range(4):  # each meets another address, and so another world
        report(tmp_path, "joining", rank, rank=rank, size=3)
    assert "a world of 3, and 4 ranks were launched" in watched.wrong().what


def test_ray_that_starts_a_cluster_on_each_rank_is_named(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for rank in (0, 1):
        report(tmp_path, "joined", rank, framework="ray", rank=0, size=1)
    found = watched.wrong()
    assert "a cluster on each of 2 ranks" in found.what and "ray_cluster.py" in found.remedy


def test_lightnings_world_of_one_comes_with_what_its_trainer_wants(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for rank in (0, 1):
        report(tmp_path, "joined", rank, framework="lightning", rank=0, size=1)
    assert "strategy='ddp'" in watched.wrong().why


def test_one_rank_may_be_a_world_of_one(tmp_path: Path) -> None:
    watched = Watched(tmp_path, ranks=1)
    report(tmp_path, "joined", 0, rank=0, size=1)
    watched.worlds.look(last=True)
    assert [world.size for world in watched.formed] == [1]


def test_what_trains_alone_is_warned_of_once(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for rank in (0, 1):
        report(tmp_path, "alone", rank)
    for _ in range(3):
        watched.worlds.look(last=True)
    (finding,) = watched.findings
    assert finding.what.startswith("PyTorch works on each of 2 ranks alone: it takes steps")


def test_long_wait_is_reported_once_with_the_ranks_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, ranks=4)
    for rank in (0, 2):
        report(tmp_path, "joining", rank, rank=rank, size=4)
    watched.worlds.look(last=True)
    assert not watched.findings
    monkeypatch.setattr(worlds, "_LONG_S", 0.0)
    for _ in range(2):
        watched.worlds.look(last=True)
    (finding,) = watched.findings
    assert "meet at 10.0.0.1:2000; those of 2 of 4 ranks are there" in finding.what
    assert finding.where.endswith("ranks that have not come: 1, 3"), finding.where
    for rank in range(4):  # they come in the end
        report(tmp_path, "joined", rank, rank=rank, size=4)
    watched.worlds.look(last=True)
    assert len(watched.findings) == 1 and len(watched.formed) == 1


def test_process_that_follows_another_in_its_rank_takes_its_number(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for rank in (0, 1):
        report(tmp_path, "joined", rank, rank=rank, size=2)
    report(tmp_path, "parted", 0)
    report(tmp_path, "joining", 0, pid=7, rank=0, size=2)
    watched.worlds.look(last=True)
    assert [world.size for world in watched.formed] == [2]
    report(
        tmp_path, "joining", 1, pid=8, rank=1, size=2
    )  # whose first program ended without a word
    watched.worlds.look(last=True)


def test_process_that_ended_without_a_word_is_gone_where_that_can_be_seen(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    ended = subprocess.Popen(["true"])
    ended.wait()
    here = socket.gethostname()
    for rank in (0, 1):
        report(tmp_path, "joined", rank, pid=ended.pid, host=here, rank=rank, size=2)
    for rank in (0, 1):  # the next program numbers them the other way round
        report(tmp_path, "joining", rank, pid=os.getpid(), host=here, rank=1 - rank, size=2)
    watched.worlds.look(last=True)


def test_late_look_sees_the_last_round_of_a_process(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for rank in (0, 1):
        for kind, values in (
            ("joining", {}),
            ("joined", {}),
            ("joining", {"round": 2, "rank": 1 - rank}),
        ):
            report(tmp_path, kind, rank, **{"rank": rank, "size": 2, **values})
    watched.worlds.look(last=True)
    assert {(r.round, r.kind) for r in watched.worlds._now.values()} == {(2, "joining")}


def test_what_looks_wrong_and_works_is_right(tmp_path: Path) -> None:
    """A second store on one port; two names of one place; a size that the framework found out by itself."""
    watched = Watched(tmp_path)
    report(tmp_path, "joining", 0, rank=0, size=2, why="port 2000 is not free there")
    report(tmp_path, "joining", 1, rank=None, size=None, address="localhost:2000")
    watched.worlds.look()
    for rank in (0, 1):
        report(tmp_path, "joined", rank, rank=rank, size=2)
    watched.worlds.look(last=True)
    assert [world.size for world in watched.formed] == [2]


def test_whole_worlds_next_to_each_other_are_wrong_also_once_they_have_ended(
    tmp_path: Path,
) -> None:
    watched = Watched(tmp_path)
    for worker in range(4):
        of = worker // 2
        place = {"pid": worker, "address": f"localhost:{of}", "agent": True}
        report(tmp_path, "joined", of, rank=worker % 2, size=2, **place)
        report(tmp_path, "parted", of, **place)
    assert "torchrun was started on each of 2 ranks" in watched.wrong().what


def test_some_ranks_may_have_a_smaller_world(tmp_path: Path) -> None:
    """Trainers of torch's RPC have a group of their own, and one rank may evaluate."""
    watched = Watched(tmp_path)
    report(tmp_path, "joined", 1, rank=0, size=1)
    watched.worlds.look(last=True)


def test_world_of_one_after_the_launchs_own_is_no_matter(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for rank in (0, 1):
        report(tmp_path, "joined", rank, rank=rank, size=2)
    for rank in (0, 1):
        report(tmp_path, "joined", rank, framework="lightning", rank=0, size=1)
    watched.worlds.look(last=True)


def test_child_that_trains_alone_next_to_a_world_is_no_matter(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    report(tmp_path, "alone", 0)
    watched.worlds.look(last=True)
    assert not watched.findings


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"framework": 1}',
        '{"framework": "torch", "launched": "0", "pid": []}',
        "\0" * 9,
    ],
)
def test_file_that_no_hook_has_written_is_passed_over(text: str, tmp_path: Path) -> None:
    (tmp_path / "joined.torch.0.1").write_text(text)
    watched = Watched(tmp_path)
    watched.worlds.look(last=True)
    assert not watched.formed


def started(folder: Path, code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A Python that finds the hook first, and ``folder`` after it."""
    paths = f"{HOOK.parent}:{folder}"
    plain = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, "-c", code], env={**plain, "PYTHONPATH": paths, **environ}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_hook_runs_the_sitecustomize_that_it_stands_before(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.mine = __name__")
    done = started(tmp_path, "print(mine, __import__('sitecustomize').__file__)")
    assert done.stdout.split() == ["sitecustomize", str(tmp_path / "sitecustomize.py")]
    assert not done.stderr


@pytest.mark.parametrize("environ", [{}, {"FAIRLEAD_RANK": "0", "FAIRLEAD_WORLD": "2"}])
def test_hook_leaves_a_python_as_it_is_until_a_framework_comes(
    environ: dict[str, str], tmp_path: Path
) -> None:
    code = "import sys; print([type(f).__name__ for f in sys.meta_path if type(f).__module__ == 'sitecustomize'])"
    done = started(tmp_path, code, **environ)
    assert done.stdout.strip() == ("['Finder']" if environ else "[]") and not done.stderr


def test_hook_that_cannot_patch_a_module_leaves_it(tmp_path: Path) -> None:
    package = tmp_path / "torch" / "optim"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "optimizer.py").write_text("register_optimizer_step_pre_hook = 7\nhere = True\n")
    done = started(
        tmp_path, "import torch.optim.optimizer as o; print(o.here, type(o.__loader__).__name__)",
        FAIRLEAD_RANK="0", FAIRLEAD_WORLD="2",
    )  # fmt: skip
    assert done.stdout.split() == ["True", "SourceFileLoader"] and not done.stderr


@pytest.mark.parametrize(("auto", "size", "reports"), [(0, 1, 1), (1, 1, 0), (1, 2, 1)])
def test_world_of_one_is_what_a_script_under_auto_has(
    auto: int, size: int, reports: int, tmp_path: Path
) -> None:
    code = (
        "import importlib.util as util, sys\n"
        f"spec = util.spec_from_file_location('hook', {str(HOOK)!r})\n"
        "hook = util.module_from_spec(spec); spec.loader.exec_module(hook)\n"
        f"hook.FOLDER = {str(tmp_path)!r}\n"
        f"if {auto}: sys.modules['fairlead.comm.auto'] = sys\n"
        f"hook.of_lightning(type('Trainer', (), dict(global_rank=0, world_size={size})))"
    )
    assert not started(tmp_path, code).stderr
    assert len([*tmp_path.glob("joined.lightning.*")]) == reports


def test_hook_writes_where_the_run_is() -> None:
    assert f'FOLDER = "{RUN_MOUNT}"' in HOOK.read_text()
