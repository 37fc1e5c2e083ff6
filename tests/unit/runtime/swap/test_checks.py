"""Each preflight check, with a plan that passes it and one that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.recorded import HYDRA, NO_FILES, OPENMPI, USER_ENGINE, host, image, planned

from fairlead.base.errors import Severity
from fairlead.elf.facts import AbiFamily, Elf, MpiLibrary
from fairlead.launchers.model import Launcher
from fairlead.swap import checks
from fairlead.swap.model import Plan


def errors(plan: Plan) -> dict[str, str]:
    """What stops the plan: all words of a finding, by the check's name."""
    found = [f for f in checks.check(plan) if f.severity is Severity.ERROR]
    assert checks.refused(tuple(found)) == bool(found)
    for finding in found:
        assert finding.what and finding.where and finding.why and finding.remedy
    return {f.check: f"{f.what} {f.where} {f.why} {f.remedy}" for f in found}


def test_good_plans_pass_every_check_and_each_says_so() -> None:
    for facts in (image(), image("debian12-mpich"), image("programs")):
        for mpi in (host(), host("impi-2021.18.1")):
            findings = checks.check(planned(facts, mpi))
            assert {f.severity for f in findings} == {Severity.OK}
            said = {f.check for f in findings}
            assert said >= {
                "abi-family",
                "launcher-family",
                "symbols",
                "glibc",
                "rpath",
                "alias",
                "closure",
                "namespaces",
            }


def tied() -> Plan:
    return planned(image("rpath"), engine=NO_FILES)


def other_family() -> Plan:
    return planned(mpi=host("openmpi-5.0.11"), launcher=OPENMPI)


def other_launcher() -> Plan:
    return planned(launcher=OPENMPI)


def old_host() -> Plan:
    library = host().library
    fewer = tuple(e for e in library.elf.mpi_exports if e not in ("MPI_Send", "MPI_Isend"))
    elf = replace(library.elf, mpi_exports=fewer)
    return planned(mpi=replace(host(), library=replace(library, elf=elf)))


def new_glibc() -> Plan:
    return planned(mpi=host("debian13-mpich-4.2.1"))


def no_glibc() -> Plan:
    return planned(replace(image(), glibc="", os="Alpine Linux"))


def part_of_glibc() -> Plan:
    """An image with the files alone that its own programs need."""
    return planned(replace(image(), runtime=("libc.so.6", "libm.so.6", "libstdc++.so.6")))


def new_libstdcxx() -> Plan:
    closure = host().closure
    needy = replace(closure[0], needs={**closure[0].needs, "GLIBCXX": "3.4.99"})
    return planned(mpi=replace(host(), closure=(needy, *closure[1:])))


def static_program() -> Plan:
    program = Elf("/opt/app/alone", "x64", mpi_exports=("MPI_Init",), interpreter="/lib/ld.so")
    facts = replace(image(), consumers=(*image().consumers, program))
    return planned(facts, apps=("/opt/app/alone",))


def mpi_in_python() -> Plan:
    inside: MpiLibrary = replace(image().mpis[0], python_prefix="/opt/python")
    return planned(replace(image(), mpis=(inside,)), engine=NO_FILES)


def no_alias() -> Plan:
    plan = planned(image("debian12-mpich"))
    assert plan.staging
    kept = tuple(a for a in plan.staging.aliases if a[0] != "lib/libmpich.so.12")
    return replace(plan, staging=replace(plan.staging, aliases=kept))


def hole_behind() -> Plan:
    return planned(mpi=replace(host(), missing=(("libcxi.so.1", "/opt/host/lib/libfabric.so.1"),)))


def two_mpis() -> Plan:
    return planned(preload="/opt/x/libtrace.so:/opt/y/libmpi.so.12")


def other_processor() -> Plan:
    return planned(replace(image(), arch="AArch64"))


@pytest.mark.parametrize(
    ("make", "check", "words"),
    [
        (tied, "rpath", ["/opt/app/tied", "DT_RPATH /opt/mpich/lib", "patchelf"]),
        (other_family, "abi-family", ["libmpi.so.40", "libmpi.so.12", "openmpi", "mpich family"]),
        (other_launcher, "launcher-family", ["Open MPI 5.0.11", "rank 0 of 1", "--launcher"]),
        (old_host, "symbols", ["MPI_Send", "MPI_Isend", "MPICH 5.0.2", "mpi4py"]),
        (new_glibc, "glibc", ["GLIBC_2.38", "GLIBC_2.36", "libmpich.so.12.4.1", "suite"]),
        (no_glibc, "glibc", ["does not have", "GLIBC_2.", "Alpine Linux", "--mpi container"]),
        (part_of_glibc, "glibc", ["libdl.so.2, libpthread.so.0, librt.so.1", "libc6"]),
        (new_libstdcxx, "glibc", ["GLIBCXX_3.4.99", "GLIBCXX_3.4.30", "libstdc++"]),
        (static_program, "static", ["/opt/app/alone", "static library"]),
        (mpi_in_python, "python-prefix", ["/opt/python", "sys.prefix/lib"]),
        (no_alias, "alias", ["libmpich.so.12", "/opt/app/allreduce", "exit code 0"]),
        (hole_behind, "closure", ["libcxi.so.1", "libfabric.so.1", "LD_LIBRARY_PATH"]),
        (two_mpis, "preload", ["/opt/y/libmpi.so.12", "two MPIs", "unset LD_PRELOAD"]),
        (other_processor, "architecture", ["AArch64", "x64"]),
    ],
)
def test_bad_plan_is_refused_for_this_reason_alone(
    make: Callable[[], Plan], check: str, words: list[str]
) -> None:
    found = errors(make())
    assert list(found) == [check]
    for word in words:
        assert word in found[check], found[check]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--contain", "/dev/shm"),
        ("-c", "/dev/shm"),
        ("--containall", "PID"),
        ("-C", "PID"),
        ("--pid", "PID namespace"),
        ("-p", "PID namespace"),
        ("--ipc", "System V"),
        ("-i", "System V"),
        ("--cleanenv", "launcher's variables"),
        ("-e", "launcher's variables"),
    ],
)
def test_engine_option_that_parts_ranks_is_refused_for_more_than_one(
    option: str, words: str
) -> None:
    found = errors(planned(engine_args=("--nv", option)))
    assert list(found) == ["namespaces"] and option in found["namespaces"]
    assert words in found["namespaces"]
    assert errors(planned(engine_args=(option,), ranks=1)) == {}
    assert errors(planned(engine_args=("--nv",))) == {}


def test_namespace_a_rank_is_reported_and_stops_nothing() -> None:
    [finding] = [f for f in checks.check(planned(engine=USER_ENGINE)) if f.check == "namespaces"]
    assert finding.severity is Severity.INFO
    assert "separate user namespace" in finding.what


def test_unknown_launcher_is_a_warning() -> None:
    launcher = Launcher("/opt/site/prun", AbiFamily.UNKNOWN, "prun")
    plan = planned(launcher=launcher)
    [finding] = [f for f in checks.check(plan) if f.check == "launcher-family"]
    assert finding.severity is Severity.WARNING and finding.where == "/opt/site/prun"
    assert errors(plan) == {}


def test_mpi_in_a_python_prefix_that_nothing_asks_for_is_no_matter() -> None:
    wheel = replace(image().mpis[0], python_prefix="/opt/python")
    abi = replace(wheel, family=AbiFamily.MPI5, elf=replace(wheel.elf, path="/opt/python/lib/a"))
    outside = replace(image(), mpis=(*image().mpis, abi))
    assert errors(planned(outside, engine=NO_FILES)) == {}


def test_runtime_of_an_interface_is_needed_where_something_uses_that_interface() -> None:
    intel = host("impi-2021.18.1")
    cxx = next(e for e in intel.companions if e.needs.get("GLIBCXX"))
    bare = replace(image(), libstdcxx="")
    assert "glibc" not in errors(planned(bare, mpi=intel))
    user = Elf("/opt/app/cxx", "x64", needed=(cxx.soname, "libmpi.so.12"), interpreter="/lib/ld.so")
    asking = replace(bare, consumers=(*bare.consumers, user))
    assert "libstdc++" in errors(planned(asking, mpi=intel))["glibc"]


def test_mpi4py_is_given_the_hosts_mpi_where_its_prefix_has_another_familys() -> None:
    inside = replace(image().mpis[0], python_prefix="/opt/conda")
    conda, openmpi = replace(image(), mpis=(inside,)), host("openmpi-5.0.11")
    variable = {"MPI4PY_LIBMPI": "/opt/fairlead/mpi/lib/libmpi.so.40"}.items()
    crossing = planned(conda, openmpi, launcher=OPENMPI, apps=("python3",))
    assert variable <= crossing.env.items() and errors(crossing) == {}
    assert "MPI4PY_LIBMPI" not in planned(conda).env  # shown over the one in the prefix
    outside = planned(image(), openmpi, launcher=OPENMPI, apps=("python3",))
    assert "MPI4PY_LIBMPI" not in outside.env
    named = (("MPI4PY_LIBMPI", "/opt/own/libmpi.so.40"),)
    own = planned(conda, openmpi, launcher=OPENMPI, apps=("python3",), mpi4py=named)
    assert "MPI4PY_LIBMPI" not in own.env


def test_rpath_to_a_folder_with_another_familys_mpi_too_is_no_matter() -> None:
    own = image("rpath").mpis[0]
    path = own.path.rpartition("/")[0] + "/libmpi_abi.so.1"
    abi = replace(own, family=AbiFamily.MPI5, elf=replace(own.elf, path=path))
    assert errors(planned(replace(image("rpath"), mpis=(own, abi)))) == {}
    same = replace(abi, family=own.family)
    assert "rpath" in errors(planned(replace(image("rpath"), mpis=(own, same)), engine=NO_FILES))


def test_rpath_is_no_advice_where_the_host_is_of_another_family() -> None:
    crossing = planned(image("rpath"), host("openmpi-5.0.11"), engine=NO_FILES, launcher=OPENMPI)
    assert list(errors(crossing)) == ["abi-family"]


def test_rpath_elsewhere_or_with_a_runpath_is_no_matter() -> None:
    def with_(**changes: tuple[str, ...]) -> Plan:
        consumers = tuple(
            replace(e, **changes) if e.path == "/opt/app/tied" else e
            for e in image("rpath").consumers
        )
        return planned(replace(image("rpath"), consumers=consumers), engine=NO_FILES)

    assert errors(with_(rpath=("/opt/other/lib",))) == {}
    assert errors(with_(runpath=("/opt/mpich/lib",))) == {}
    assert list(errors(with_(rpath=("$ORIGIN/../mpich/lib",)))) == ["rpath"]


def test_newer_libstdcxx_of_the_host_comes_along() -> None:
    closure = host().closure
    needy = replace(closure[0], needs={**closure[0].needs, "GLIBCXX": "3.4.99"})
    newer = Elf(
        "/usr/lib/libstdc++.so.6.0.99", "x64", soname="libstdc++.so.6", offers={"GLIBCXX": "3.4.99"}
    )
    plan = planned(mpi=replace(host(), closure=(needy, *closure[1:], newer)))
    assert errors(plan) == {}
    assert plan.staging and "lib/libstdc++.so.6" in [f.target for f in plan.staging.files]


def test_container_mode_checks_only_what_matters_there() -> None:
    from tests.support.recorded import CACHE, ROOT_ENGINE, SITE

    from fairlead.swap.model import Inputs, Request
    from fairlead.swap.plan import plan as make

    def own(launcher: Launcher) -> Plan:
        request = Request(mpi="container", ranks=2)
        return make(Inputs("/x", image("rpath"), None, launcher, SITE, ROOT_ENGINE, request, CACHE))

    assert errors(own(HYDRA)) == {}
    assert list(errors(own(OPENMPI))) == ["launcher-family"]
