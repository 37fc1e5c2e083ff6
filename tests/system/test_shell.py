"""``fairlead shell``: a real terminal in real containers, on the host's MPI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.terminal import Terminal
from tests.system import hosts

SHELL = (sys.executable, "-m", "fairlead", "shell")
PROMPT = "] $ "
MPI = "python3 -c 'from mpi4py import MPI; print(MPI.COMM_WORLD.size, MPI.Get_library_version()[:40])'"


def opened(*words: object, env: dict[str, str] | None = None) -> Terminal:
    terminal = Terminal([*SHELL, *map(str, words)], {**os.environ, **(env or {})})
    terminal.until(PROMPT)
    return terminal


def answer(terminal: Terminal, line: str) -> str:
    """What a line prints: the terminal shows the line too, and its end in another form."""
    terminal.type(f"{line}; echo the=$((40+2))\n")
    shown = terminal.until("the=42")
    terminal.until(PROMPT)
    return shown


@pytest.mark.parametrize("engine", ["apptainer", "podman", "charliecloud"])
def test_shell_is_at_the_terminal_and_on_the_hosts_mpi(engine: str, tmp_path: Path) -> None:
    words = ("--engine", engine, "--mpi", hosts.mpich(), "--bind", tmp_path, "--env", "GIVEN=a b")
    terminal = opened(*words, hosts.image())
    assert "proved on 1 rank" in (shown := answer(terminal, MPI))
    assert "1 MPICH Version:      5.0.2" in shown
    assert "/dev/pts/" in answer(terminal, "tty")
    assert "<a b>" in answer(terminal, f'echo "<$GIVEN>" | tee {tmp_path}/made')
    # Ctrl-C ends the program, not the shell: the terminal's foreground group is the shell's to choose.
    # It prints once it is in the foreground: before, the shell would have the Ctrl-C.
    terminal.type("sh -c 'echo be''gun; exec sleep 600'\n")
    terminal.until("begun")
    terminal.type("\x03")
    terminal.until(PROMPT)
    terminal.type("exit 7\n")
    assert terminal.end() == 7
    assert (tmp_path / "made").read_text() == "<a b>\n"


def test_shell_runs_open_mpi_without_its_launcher() -> None:
    terminal = opened("--mpi", hosts.openmpi(), hosts.image("mpi-base:openmpi"))
    assert "1 Open MPI v5.0.11" in answer(terminal, MPI)
    terminal.type("exit\n")
    assert terminal.end() == 0


def test_shell_ends_a_program_on_another_mpi() -> None:
    other = hosts.old_mpich() / "lib"
    terminal = opened("--mpi", hosts.mpich(), "--bind", other, hosts.image())
    shown = answer(
        terminal, f"LD_LIBRARY_PATH={other} MPI4PY_LIBMPI={other}/libmpi.so.12 {MPI}; echo is=$?"
    )
    assert "not as planned" in shown and "is=122" in shown and "1 MPICH Version" not in shown
    terminal.type("exit\n")
    terminal.end()


@pytest.mark.parametrize(
    ("before", "bound"), [("PMI_RANK=3", "PMI_RANK"), ("PMIX_NAMESPACE=x", "PMIX_NAMESPACE")]
)
def test_shell_within_a_job_step_is_no_rank_of_it(before: str, bound: str) -> None:
    name, _, value = before.partition("=")
    terminal = opened("--mpi", hosts.mpich(), hosts.image(), env={name: value})
    assert "<>" in answer(terminal, f'echo "<${bound}>"')
    terminal.type("exit\n")
    terminal.end()


@pytest.mark.parametrize("missing", ["stdin", "stdout"])
def test_shell_without_a_terminal_is_refused_with_what_to_type(missing: str) -> None:
    leader, follower = os.openpty()
    streams: dict[str, Any] = {"stdin": follower, "stdout": follower, missing: subprocess.PIPE}
    done = subprocess.run(
        [*SHELL, "mpi-base"], **streams, stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )
    os.close(leader)
    os.close(follower)
    assert done.returncode == 2
    assert "no-terminal" in done.stderr and missing in done.stderr
    assert "fairlead run -n 1 mpi-base -- COMMAND" in done.stderr
