"""What stays of an image's MPI once its libmpi is replaced, and what it then lacks: on compiled libraries.

The image has an Open MPI 4, whose interfaces use symbols inside of it; the host one without them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.compiled import CALLS, MAIN, OPENMPI, OPENS, compiled
from tests.support.recorded import OPENMPI as LAUNCHER
from tests.support.recorded import planned

from fairlead.base.errors import Finding, Severity
from fairlead.elf.facts import ImageFacts
from fairlead.elf.mpi_symbols import is_interface
from fairlead.image.scan import scan_tree
from fairlead.mpi.host import HostMpi, in_prefix
from fairlead.swap import checks

OLD = OPENMPI + "int ompi_throws = 7; int ompi_callback(void) { return 2; }"
CXX = "extern int ompi_throws; int *cxx_throws(void) { return &ompi_throws; }"
FORTRAN = "int ompi_callback(void); int opal_old(void); int f_call(void) { return ompi_callback() + opal_old(); }"
LAZY = "-Wl,-z,lazy"


def pal(folder: Path, number: int) -> Path:
    code = f"int opal_common(void) {{ return {number}; }} int opal_old(void) {{ return 1; }}"
    return compiled(folder / f"libopen-pal.so.{number}", code)


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> ImageFacts:
    root = tmp_path_factory.mktemp("link") / "root"
    lib, app = root / "usr/lib", root / "opt/app"
    own = str(pal(lib, 40))
    mpi = str(compiled(lib / "libmpi.so.40", OLD + "int opal_common(void); int u(void) { return opal_common(); }", own))  # fmt: skip
    cxx = str(compiled(lib / "libmpi_cxx.so.40", CXX, mpi, LAZY))
    fortran = str(compiled(lib / "libmpi_mpifh.so.40", FORTRAN, mpi, own, LAZY))
    only = str(compiled(lib / "liboshmem.so.40", FORTRAN.replace("opal_old", "opal_new").replace("f_", "s_"), mpi, LAZY, "-Wl,--unresolved-symbols=ignore-all"))  # fmt: skip
    compiled(app / "plain", MAIN + CALLS, mpi)
    compiled(
        app / "cxx", "int *cxx_throws(void); int main(void) { return *cxx_throws(); }", cxx, mpi
    )
    compiled(app / "fortran", "int f_call(void); int main(void) { return f_call(); }", fortran, mpi)
    compiled(app / "shmem", "int s_call(void); int main(void) { return s_call(); }", only, mpi,
             "-Wl,--allow-shlib-undefined")  # fmt: skip
    opening = str(
        compiled(
            lib / "libmpi_java.so.40",
            "int ompi_callback(void); int java_call(void) { return ompi_callback(); }",
            mpi,
        )
    )
    compiled(
        lib / "openmpi/mca_javac_plain.so",
        "int java_call(void); int open_it(void) { return java_call(); }",
        opening,
    )
    compiled(
        app / "opening", "int java_call(void); int main(void) { return java_call(); }", opening
    )
    compiled(app / "opens", OPENS)
    compiled(app / "direct", "int ompi_callback(void); int main(void) { return ompi_callback(); }", mpi, LAZY)  # fmt: skip
    return replace(scan_tree(root), glibc="2.99", arch="x64")


def the_host(folder: Path, code: str, number: int) -> HostMpi:
    lib = folder / "mpi/lib"
    own = str(pal(lib, number))
    code += "int opal_common(void); int u(void) { return opal_common(); }"
    compiled(lib / "libmpi.so.40", code, own, "-Wl,-rpath,$ORIGIN")
    environ = {"XDG_CACHE_HOME": str(folder / "cache"), "PATH": ""}
    return in_prefix(folder / "mpi", "for the test", environ)[0]


def symbols(facts: ImageFacts, host: HostMpi, name: str) -> list[Finding]:
    plan = planned(facts, host, launcher=LAUNCHER, apps=(f"/opt/app/{name}",))
    others = [f for f in checks.check(plan) if f.severity is Severity.ERROR]
    assert {f.check for f in others} <= {"symbols"}
    return [f for f in checks.check(plan) if f.check == "symbols"]


def test_data_that_an_interface_needs_at_once_is_missed(facts: ImageFacts, tmp_path: Path) -> None:
    [found] = symbols(facts, the_host(tmp_path, OPENMPI, 80), "cxx")
    assert found.severity is Severity.ERROR
    assert "ompi_throws" in found.why and "/usr/lib/libmpi.so.40" in found.why
    assert found.where == "/usr/lib/libmpi_cxx.so.40"


def test_function_that_a_program_calls_is_missed(facts: ImageFacts, tmp_path: Path) -> None:
    [found] = symbols(facts, the_host(tmp_path, OPENMPI, 80), "direct")
    assert found.severity is Severity.ERROR and "ompi_callback" in found.why


def test_files_that_lack_the_same_are_one_finding(facts: ImageFacts, tmp_path: Path) -> None:
    [direct] = (e for e in facts.consumers if e.path == "/opt/app/direct")
    more = tuple(replace(direct, path=f"/opt/app/direct{n}") for n in range(12))
    leads = {**facts.leads, **{e.path: facts.leads["/opt/app/direct"] for e in more}}
    facts = replace(facts, consumers=(*facts.consumers, *more), leads=leads)
    host = the_host(tmp_path, OPENMPI, 80)
    plan = planned(facts, host, launcher=LAUNCHER, apps=tuple(e.path for e in (direct, *more)))
    [found] = (f for f in checks.check(plan) if f.check == "symbols")
    assert found.severity is Severity.ERROR and found.what.startswith("13 files need internal")
    assert found.where == "/opt/app/direct, /opt/app/direct0, /opt/app/direct1 and 10 more"
    assert "ompi_callback" in found.why and "--app" in found.remedy


def test_what_starts_anything_is_refused_where_no_program_of_the_image_fits(
    facts: ImageFacts, tmp_path: Path
) -> None:
    """Programs that fit, next to one that does not, are no reason to refuse a shell with a text that cannot be read."""

    def severities(*names: str, kind: str = "starts") -> set[Severity]:
        there = [e for e in facts.consumers if e.path.removeprefix("/opt/app/") in names]
        if kind == "opens":  # libraries in their place
            there = [replace(e, interpreter="", can_start=False) for e in there]
        kept = (*there, *(e for e in facts.consumers if is_interface(e)))
        few = replace(facts, consumers=kept, programs={**facts.programs, "/bin/sh": kind})
        host = the_host(tmp_path / f"{kind}{names}", OPENMPI, 80)
        plan = planned(few, host, launcher=LAUNCHER, command=("sh", "-c", "$PROGRAM"))
        return {f.severity for f in checks.check(plan) if f.check == "symbols"}

    assert severities("direct", "plain") == severities("fortran", "plain") == {Severity.WARNING}
    assert Severity.ERROR in severities("direct") & severities("fortran", "cxx", "direct")
    assert severities("direct", "plain", kind="opens") == {Severity.WARNING}
    assert Severity.ERROR in severities("direct", kind="opens")


def test_function_that_only_an_interface_calls_is_a_warning(
    facts: ImageFacts, tmp_path: Path
) -> None:
    [found] = symbols(facts, the_host(tmp_path, OPENMPI, 40), "shmem")
    assert found.severity is Severity.WARNING and "ompi_callback" in found.why


def test_openshmem_of_another_release_is_refused(facts: ImageFacts, tmp_path: Path) -> None:
    """Its structures are those of the libopen-pal that it was built with: it ends by a segmentation fault."""
    found = symbols(facts, the_host(tmp_path, OPENMPI, 80), "shmem")
    [refused] = (f for f in found if f.severity is Severity.ERROR)
    assert refused.where == "/usr/lib/liboshmem.so.40"
    assert "works only with the image's own MPI" in refused.what


def test_core_that_programs_ask_for_by_name_comes_from_the_host_or_is_refused(
    tmp_path: Path,
) -> None:
    """Open MPI 6: what programs link is a front of libopen_mpi, which they link too."""
    root = tmp_path / "root"
    lib, app = root / "usr/lib", root / "opt/app"

    def split(folder: Path) -> tuple[str, str]:
        core = str(compiled(folder / "libopen_mpi.so.40", "int opal_common(void) { return 6; }"))
        code = OPENMPI + "int opal_common(void); int u(void) { return opal_common(); }"
        return str(compiled(folder / "libmpi.so.40", code, core, "-Wl,-rpath,$ORIGIN")), core

    both = split(lib)
    uses = MAIN + CALLS.replace("{", "{ opal_common();", 1)
    compiled(app / "six", "int opal_common(void);" + uses, *both)
    facts = replace(scan_tree(root), glibc="2.99", arch="x64")
    [refused] = symbols(facts, the_host(tmp_path / "five", OPENMPI, 80), "six")
    assert refused.severity is Severity.ERROR and refused.where == "/usr/lib/libopen_mpi.so.40"
    split(tmp_path / "host/mpi/lib")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": ""}
    host = in_prefix(tmp_path / "host/mpi", "for the test", environ)[0]
    plan = planned(facts, host, launcher=LAUNCHER, apps=("/opt/app/six",))
    assert not [f for f in checks.check(plan) if f.severity is Severity.ERROR]
    assert "/usr/lib/libopen_mpi.so.40" in plan.bound  # a DT_RPATH may lead there


def test_interface_that_brings_another_release_of_a_library_is_refused(
    facts: ImageFacts, tmp_path: Path
) -> None:
    [found] = symbols(facts, the_host(tmp_path, OLD, 80), "fortran")
    assert found.severity is Severity.ERROR
    for name in ("/usr/lib/libopen-pal.so.40", "libopen-pal.so.80"):
        assert name in found.what
    [same] = symbols(facts, the_host(tmp_path / "same", OLD, 40), "fortran")
    assert same.severity is Severity.OK


def test_interface_of_the_host_takes_the_place_of_the_images(
    facts: ImageFacts, tmp_path: Path
) -> None:
    folder = tmp_path / "mpi/lib"
    first = the_host(tmp_path, OPENMPI, 80)
    compiled(folder / "libmpi_cxx.so.40", "int *cxx_throws(void) { return 0; }", str(folder / "libmpi.so.40"))  # fmt: skip
    environ = {"XDG_CACHE_HOME": str(tmp_path / "other"), "PATH": ""}
    host = in_prefix(Path(first.prefix), "again", environ)[0]
    assert [c.name for c in host.companions] == ["libmpi_cxx.so.40"]
    found = symbols(facts, host, "cxx")
    assert not [f for f in found if f.severity is Severity.ERROR]


def test_program_of_the_interface_for_c_is_fine(facts: ImageFacts, tmp_path: Path) -> None:
    [found] = symbols(facts, the_host(tmp_path, OPENMPI, 80), "plain")
    assert found.severity is Severity.OK


def test_interfaces_that_no_opened_library_uses_are_not_missed(
    facts: ImageFacts, tmp_path: Path
) -> None:
    found = symbols(facts, the_host(tmp_path, OPENMPI, 80), "opens")
    assert not [f for f in found if f.severity is Severity.ERROR], found


def test_interface_whose_components_the_host_lacks_is_refused(
    facts: ImageFacts, tmp_path: Path
) -> None:
    lacks, has = tmp_path / "lacks", tmp_path / "has"
    [found] = symbols(facts, the_host(lacks, OLD, 80), "opening")
    assert found.severity is Severity.ERROR and "javac" in found.why
    compiled(has / "mpi/lib/openmpi/mca_javac_own.so", "int own(void) { return 1; }")
    [found] = symbols(facts, the_host(has, OLD, 80), "opening")
    assert found.severity is not Severity.ERROR, found


def test_facts_that_do_not_say_claim_nothing(facts: ImageFacts, tmp_path: Path) -> None:
    host = the_host(tmp_path, OPENMPI, 80)
    old = tuple(replace(e, imports={}, calls={}) for e in facts.consumers)
    unknown = replace(facts, consumers=old, parts={}, leads={})
    for image, mpi in ((unknown, host), (facts, replace(host, symbols={}))):
        for name in ("cxx", "fortran", "direct"):
            assert not [f for f in symbols(image, mpi, name) if f.severity is Severity.ERROR]
