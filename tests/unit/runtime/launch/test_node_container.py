"""A node's container: whom it takes for the process that holds it, and lines without a launch."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.recorded import CACHE, HYDRA, ROOT_ENGINE, SITE, host, image

from fairlead.engines.rank_shell import KEPT
from fairlead.launch import node_container
from fairlead.launch.launch import command_line
from fairlead.swap.model import Inputs, Request
from fairlead.swap.plan import plan


@pytest.mark.parametrize("text", ["{pid} 1", "", "x", "999999999 1"])
def test_note_that_names_another_process_ends_nothing(tmp_path: Path, text: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        (tmp_path / f"{KEPT}.node.1").write_text(text.format(pid=other.pid))
        assert node_container.release(tmp_path, "node.1") == 0
        node_container.end(tmp_path, "node.1")
        assert other.poll() is None
        other.kill()


def test_holder_is_asked_to_end_and_killed_if_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_container, "_END_S", 0.2)
    kept = tmp_path / f"{KEPT}.node.1"
    words = ["sh", "-c", "trap '' TERM; echo; while :; do sleep 1; done", "holder", str(kept)]
    with subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline()
        kept.write_text(f"{holder.pid} 1\n")
        assert node_container.release(tmp_path, "node.1") == holder.pid
        node_container.end(tmp_path, "node.1")
        assert holder.wait() == -signal.SIGKILL


def test_line_that_is_pasted_starts_a_container_for_each_rank(tmp_path: Path) -> None:
    """There, nothing starts the one that ranks would join, so they must not read each other's memory."""
    apart = replace(ROOT_ENGINE, userns_per_rank=True, options=("--userns",))
    request = Request(ranks=2)
    lines = {}
    for engine in (apart, replace(apart, joins=True)):
        made = plan(Inputs("/no.sif", image(), host(), HYDRA, SITE, engine, request, CACHE))
        lines[engine.joins] = [command_line(made, ("true",), 2, record=r) for r in (None, tmp_path)]
    pasted, launched = lines[True]
    assert pasted == lines[False][0] and lines[False][1].container is None
    assert "APPTAINERENV_MPIR_CVAR_CH4_CMA_ENABLE" in pasted.environ
    assert "APPTAINERENV_MPIR_CVAR_CH4_CMA_ENABLE" not in launched.environ
    assert launched.container and "--sharens" in launched.container.start
    assert set(launched.container.unset) == set(launched.environ)
    assert not any("/no.sif" in word for word in launched.argv)
