"""A node's container: whom it takes for the process that holds it, and lines without a launch."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.recorded import CACHE, HYDRA, ROOT_ENGINE, SITE, host, image

from fairlead.engines import apptainer
from fairlead.engines.rank_shell import KEPT
from fairlead.launch import node_container
from fairlead.launch.launch import command_line
from fairlead.swap.model import Inputs, Request
from fairlead.swap.plan import plan


@pytest.mark.parametrize("text", ["{pid} 1", "", "x", "999999999 1"])
def test_note_that_names_another_process_ends_nothing(tmp_path: Path, text: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        (tmp_path / f"{KEPT}.node.1.begun").write_text(text.format(pid=other.pid))
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
        (tmp_path / f"{KEPT}.node.1.begun").write_text(f"{holder.pid}\n")
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


def test_job_keeps_its_control_groups(tmp_path: Path) -> None:
    """Apptainer moves what joins a container into the container's, where it can make one by systemd."""
    engine = replace(ROOT_ENGINE, userns_per_rank=True, joins=True)
    inputs = Inputs("/no.sif", image(), host(), HYDRA, SITE, engine, Request(ranks=2), CACHE)
    line = command_line(plan(inputs), ("true",), 2, record=tmp_path)
    assert line.container
    unset = ("env", "-u", "DBUS_SESSION_BUS_ADDRESS", "-u", "XDG_RUNTIME_DIR")
    at = line.container.start.index("env")
    assert line.container.start[at : at + 5] == unset


@pytest.mark.parametrize(
    ("extra", "environ", "joins"),
    [
        ((), {}, True),
        (("--nv", "--bind=/a:/b", "-B", "/c"), {"APPTAINER_WRITABLE_TMPFS": "0"}, True),
        (("--underlay",), {}, True),
        (("--nvccli",), {}, False),
        (("--drop-caps=CAP_NET_RAW",), {}, False),
        (("--overlay", "x"), {}, False),
        ((), {"APPTAINER_MEMORY": "1g"}, False),
        ((), {"SINGULARITY_NVCCLI": "true"}, False),
    ],
)
def test_options_that_make_a_container_a_ranks_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    extra: tuple[str, ...],
    environ: dict[str, str],
    joins: bool,
) -> None:
    monkeypatch.setattr(apptainer, "_SYSTEMD", str(tmp_path / "none"))
    program = tmp_path / "apptainer"
    program.write_text("#!/bin/sh\necho apptainer version 1.3.0\n")
    program.chmod(0o755)
    engine = replace(ROOT_ENGINE, path=str(program), options=("--userns",))
    assert apptainer.ENGINE.can_join(engine, extra, environ) is joins
    monkeypatch.setattr(apptainer, "_SYSTEMD", str(tmp_path))  # root's are in a group of their own
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not apptainer.ENGINE.can_join(engine, extra, environ)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert apptainer.ENGINE.can_join(engine, extra, environ) is joins


@pytest.mark.parametrize("text", ["apptainer version 1.2.5", "singularity-ce version 4.1.0", ""])
def test_programs_without_shared_containers(tmp_path: Path, text: str) -> None:
    program = tmp_path / "apptainer"
    program.write_text(f"#!/bin/sh\necho {text}\n")
    program.chmod(0o755)
    engine = replace(ROOT_ENGINE, path=str(program), options=("--userns",))
    assert not apptainer.ENGINE.can_join(engine, (), {})
