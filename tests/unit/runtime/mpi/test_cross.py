"""What can go to an MPI of another family, and what is told of the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.recorded import HOSTS, IMAGES, OPENMPI, host, image, planned

from fairlead.base.errors import Severity
from fairlead.elf.facts import AbiFamily, Elf
from fairlead.mpi.cross_abi import crossing
from fairlead.swap import checks
from fairlead.swap.family import choose_host, image_family
from fairlead.swap.model import Request

OTHER = "openmpi-5.0.11"
PYTHON = ("python3", "train.py")


def errors(command: tuple[str, ...] = (), **more: object) -> dict[str, str]:
    plan = planned(mpi=host(OTHER), launcher=OPENMPI, command=command, **more)
    found = [f for f in checks.check(plan) if f.severity is Severity.ERROR]
    return {f.check: f"{f.why} {f.remedy}" for f in found}


@pytest.mark.parametrize("program", ["python3", "python", "/opt/python/bin/python3.11"])
def test_python_with_mpi4py_crosses_and_the_plan_is_for_the_hosts_family(program: str) -> None:
    plan = planned(mpi=host(OTHER), launcher=OPENMPI, command=(program, "train.py"))
    assert not errors((program, "train.py"))
    assert plan.family is AbiFamily.OPENMPI and plan.names == ("libmpi.so.40",)
    assert [e.path.rpartition("/")[2].split(".")[1] for e in plan.consumers] == ["openmpi"]
    assert "mpi4py" in next(line.why for line in plan.lines if line.kind == "replace")


def test_program_named_by_app_crosses_too() -> None:
    assert not errors(apps=("python3",))


@pytest.mark.parametrize(
    "command", [("mpi-ring",), ("./train.py",), ("bash", "-c", "python3 x.py")]
)
def test_anything_else_is_refused_and_shown_what_could(command: tuple[str, ...]) -> None:
    found = errors(command)
    assert "only Python programs" in found["abi-family"] and command[0] in found["abi-family"]
    assert "start it by `python3`" in found["abi-family"]


def test_nothing_named_is_refused_and_shown_how_to_name_it() -> None:
    assert "--app python3" in errors()["abi-family"]


def test_extension_of_the_images_family_keeps_python_from_crossing() -> None:
    facts = image()
    horovod = Elf("/opt/python/lib/horovod/mpi_lib.so", "x64", needed=("libmpi.so.12",))
    facts = replace(facts, consumers=(*facts.consumers, horovod))
    over = crossing(facts, PYTHON[:1], AbiFamily.OPENMPI)
    assert not over.allowed and "mpi_lib.so" in over.why_not and "two MPIs" in over.why_not
    found = errors(PYTHON, facts=facts)
    assert "mpi_lib.so" in found["abi-family"]
    app = f"--app {over.modules[0].path}"
    assert app in found["abi-family"]
    assert not errors(PYTHON, facts=facts, apps=(over.modules[0].path,))
    assert "--app" not in errors(("mpi-ring",), facts=facts)["abi-family"]


def test_extension_of_the_hosts_family_crosses_with_mpi4py() -> None:
    facts = image()
    lammps = Elf("/opt/python/lib/lammps/liblammps.so", "x64", "liblammps.so.0", ("libmpi.so.40",))
    facts = replace(facts, consumers=(*facts.consumers, lammps))
    assert crossing(facts, PYTHON[:1], AbiFamily.OPENMPI).allowed
    plan = planned(facts, mpi=host(OTHER), launcher=OPENMPI, command=PYTHON)
    assert lammps in plan.consumers and not errors(PYTHON, facts=facts)
    both = replace(lammps, needed=("libmpi.so.40", "libmpi.so.12"))
    facts = replace(facts, consumers=(*facts.consumers, both))
    assert "two MPIs" in crossing(facts, PYTHON[:1], AbiFamily.OPENMPI).why_not


def test_image_without_mpi4py_does_not_cross() -> None:
    facts = image()
    without = tuple(e for e in facts.consumers if "mpi4py" not in e.path)
    over = crossing(replace(facts, consumers=without), PYTHON[:1], AbiFamily.OPENMPI)
    assert not over.allowed and "no mpi4py" in over.why_not


def test_mpi5_abi_is_not_crossed_to_without_a_module_for_it() -> None:
    assert not crossing(image(), PYTHON[:1], AbiFamily.MPI5).allowed


def test_host_of_the_images_family_is_chosen_before_one_that_is_crossed_to() -> None:
    hosts = [host(OTHER), host("mpich-5.0.2")]
    asked = Request(command=PYTHON)
    hosts = [replace(h, launcher=h.launcher or OPENMPI) for h in hosts]
    chosen, _ = choose_host(image(), hosts, asked)
    assert chosen is hosts[1]
    alone, _ = choose_host(image(), hosts[:1], asked)
    assert alone is hosts[0]
    nobody, notes = choose_host(image(), hosts[:1], Request(command=("mpi-ring",)))
    assert nobody is None and "only Python programs" in notes[0].why


def test_call_that_the_other_mpi_lacks_is_found() -> None:
    library = host(OTHER).library
    fewer = tuple(e for e in library.elf.mpi_exports if e != "MPI_Send")
    lacking = replace(
        host(OTHER), library=replace(library, elf=replace(library.elf, mpi_exports=fewer))
    )
    plan = planned(mpi=lacking, launcher=OPENMPI, command=PYTHON)
    found = [f for f in checks.check(plan) if f.check == "symbols"]
    assert found[0].severity is Severity.ERROR and "MPI_Send" in found[0].why


def test_every_recorded_pair_is_within_a_family_or_crosses_or_is_refused() -> None:
    for name in IMAGES:
        for other in HOSTS:
            plan = planned(image(name), host(other), command=PYTHON)
            family = image_family(plan.facts)
            same = family is host(other).library.family
            said = next(f for f in checks.check(plan) if f.check == "abi-family")
            over = crossing(plan.facts, ("python3",), host(other).library.family)
            assert (said.severity is Severity.OK) == (same or over.allowed), (name, other)


def test_host_mpi_of_an_unknown_family_is_reached_by_no_module() -> None:
    over = crossing(image(), PYTHON[:1], AbiFamily.UNKNOWN)
    assert not over.allowed and "unknown family" in over.why_not
