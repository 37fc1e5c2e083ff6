"""What becomes of the variables in which an MPI of this machine names its own files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.recorded import CACHE, HYDRA, OPENMPI, ROOT_ENGINE, SITE, host, image

from fairlead.cli.options import Planning
from fairlead.launch.launch import command_line, terminal_line
from fairlead.launchers.model import Launcher
from fairlead.swap.model import Inputs, Plan, Request
from fairlead.swap.plan import plan
from fairlead.swap.shell_mpi import PLACES, places

SHELL = {"OPAL_PREFIX": "/opt/openmpi", "I_MPI_ROOT": "/opt/intel", "OMPI_MCA_btl": "self,sm", "PMIX_RANK": "0"}  # fmt: skip


def planned(launcher: Launcher, **words: str) -> Plan:
    asked = Planning(apps=(), binds=(), engine_args=(), **words).request(2, environ=SHELL)
    return plan(Inputs("/no.sif", image(), host(), launcher, SITE, ROOT_ENGINE, asked, CACHE))


def test_places_are_those_of_files_alone() -> None:
    assert places(SHELL) == ("I_MPI_ROOT", "OPAL_PREFIX")
    wire = {"PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_URI41", "PMI_FD", "OMPI_MCA_orte_precondition_transports"}  # fmt: skip
    assert not PLACES & wire and {"PMIX_INSTALL_PREFIX", "UCX_MODULE_DIR"} <= PLACES


def test_launcher_keeps_what_its_ranks_containers_do_without() -> None:
    made = planned(HYDRA, mpi="container")
    line = command_line(made, ("true",), 2)
    assert not set(line.unset) & PLACES
    first = line.argv.index("env")
    assert line.argv[first : first + 5] == ("env", "-u", "I_MPI_ROOT", "-u", "OPAL_PREFIX")
    assert line.argv[first + 5] == made.engine.path
    assert line.environment({**SHELL})["OPAL_PREFIX"] == "/opt/openmpi"
    lines = {part.what: part.why for part in made.lines if part.kind == "unset"}
    assert lines.keys() == {"I_MPI_ROOT", "OPAL_PREFIX"} and "--env" in lines["OPAL_PREFIX"]


def test_open_mpis_launcher_may_set_them_itself() -> None:
    made = replace(planned(HYDRA, mpi="container"), withheld=())
    assert "env" not in command_line(made, ("true",), 2).argv
    request = Request(mpi="container", ranks=2)
    inputs = Inputs("/no.sif", image(), host(), OPENMPI, SITE, ROOT_ENGINE, request, CACHE)
    assert {"OPAL_PREFIX", "PMIX_INSTALL_PREFIX"} <= {*plan(inputs).withheld}


def test_shell_in_an_image_does_without_them_at_once() -> None:
    assert {"I_MPI_ROOT", "OPAL_PREFIX"} <= {*terminal_line(planned(HYDRA), ("sh",)).unset}


def test_page_lists_them() -> None:
    page = (Path(__file__).parents[4] / "docs/howto/swap.md").read_text("utf-8")
    for name in ("OPAL_PREFIX", "I_MPI_ROOT", "MPI_ROOT", "UCX_MODULE_DIR", "FI_PROVIDER_PATH"):
        assert f"`{name}`" in page
