"""Programs of Fortran alone: which MPI they are of, in a small tree of compiled files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.compiled import CALLS, MAIN, MPICH, PLAIN, WHOLE, archive, compiled, image_tree
from tests.support.recorded import HYDRA, ROOT_ENGINE, SITE, host, planned

from fairlead.base.errors import FairleadError, Severity
from fairlead.elf.facts import AbiFamily, ImageFacts
from fairlead.elf.mpi_standard import FORTRAN_STARTS
from fairlead.image.scan import scan_tree
from fairlead.mpi.host import in_prefix
from fairlead.proof.closure import File, Library, judged, libraries
from fairlead.swap import checks
from fairlead.swap.family import image_family, speaking
from fairlead.swap.model import Inputs, Plan, Request
from fairlead.swap.plan import plan

NAMES = ("mpi_{0}", "mpi_{0}_", "mpi_{0}__", "MPI_{1}")
TINY = """
const char *variable = "PMI_RANK";
int MPI_Init(int *c, char ***v) { return 0; }
int MPI_Comm_rank(int c, int *r) { return *r = 0; }
"""
CALLS_C = "int MPI_Init(int *, char ***); int MPI_Comm_rank(int, int *);\n"
BIG_NUMBERS = "void mpi_init(int *x) { *x = 0; } void mpi_free(int *x) { *x = 0; }"


def interface(init: str = "MPI_Init(0, 0)", rank: str = "MPI_Comm_rank(0, r)") -> str:
    """A library for Fortran, under each name that compilers give its functions."""
    made = ""
    for name in NAMES:
        made += f"void {name.format('init', 'INIT')}(int *e) {{ *e = {init}; }}\n"
        made += f"void {name.format('comm_rank', 'COMM_RANK')}(int *c, int *r, int *e) {{ *e = {rank}; }}\n"
    return made


def program(name: str = "mpi_{0}_", more: str = "") -> str:
    init, rank = name.format("init", "INIT"), name.format("comm_rank", "COMM_RANK")
    declared = f"void {init}(int *); void {rank}(int *, int *, int *);"
    return f"{declared} int main(void) {{ int r, e; {init}(&e); {rank}(&e, &r, &e); {more} return r; }}"


ALONE = interface("0", "*r = 0")


def scanned(root: Path) -> ImageFacts:
    return replace(scan_tree(root), glibc="2.99", libstdcxx="3.4.99", arch="x64")


def kept(facts: ImageFacts, app: str = "/opt/app/f") -> Plan:
    request = Request(mpi="container", ranks=2, apps=(app,))
    return plan(Inputs("/x", facts, None, HYDRA, SITE, ROOT_ENGINE, request, Path("/cache")))


@pytest.mark.parametrize("name", [*NAMES, "mpi_{0}_f08_"])
def test_interface_of_its_own_leads_to_the_mpi_under_any_name(name: str, tmp_path: Path) -> None:
    if "f08" in name:
        code = "void mpi_init_f08_(int *e) { *e = MPI_Init(0, 0); }"
        code += "void mpi_comm_rank_f08_(int *c, int *r, int *e) { *e = MPI_Comm_rank(0, r); }"
    else:
        code = interface()
    tiny = compiled(tmp_path / "opt/tiny/libtiny.so.1", TINY)
    fort = compiled(tmp_path / "opt/tiny/libtinyfort.so.1", CALLS_C + code, str(tiny))
    compiled(tmp_path / "opt/app/f", program(name), str(fort))
    facts = scanned(tmp_path)
    assert [(m.path, m.pmi) for m in facts.mpis] == [("/opt/tiny/libtiny.so.1", "pmi")]
    assert {e.path for e in facts.consumers} == {"/opt/app/f", "/opt/tiny/libtinyfort.so.1"}
    made = kept(facts)
    assert made.unknown_mpi and made.planned_file == "/opt/tiny/libtiny.so.1"
    assert speaking(facts, made.request) is AbiFamily.MPICH
    found = {f.check: f for f in checks.check(made)}
    assert not checks.refused(tuple(found.values()))
    assert "libtiny.so.1" in found["mpi-unknown"].what and "names PMI" in found["mpi-unknown"].why


@pytest.mark.parametrize("soname", ["libalone.so.1", "libmpi_alone.so.3"])
def test_library_for_fortran_alone_is_the_mpi(soname: str, tmp_path: Path) -> None:
    library = compiled(tmp_path / "opt" / soname, ALONE)
    compiled(tmp_path / "opt/app/f", program(), str(library))
    facts = scanned(tmp_path)
    assert [m.path for m in facts.mpis] == [f"/opt/{soname}"]
    assert kept(facts).planned_file == f"/opt/{soname}"
    with pytest.raises(FairleadError, match="no family that fairlead knows") as raised:
        planned(facts, apps=("f",))
    assert "--mpi container" in raised.value.findings[0].remedy


def test_interface_with_the_name_of_an_mpi_is_none_that_ranks_may_not_map(tmp_path: Path) -> None:
    tiny = compiled(tmp_path / "opt/libtiny.so.1", TINY)
    fort = compiled(tmp_path / "opt/libmpi_tiny_f.so.1", CALLS_C + interface(), str(tiny))
    compiled(tmp_path / "opt/app/f", program(), str(fort))
    made = kept(scanned(tmp_path))
    assert made.planned_file == "/opt/libtiny.so.1"
    known = libraries(made, Path("/cache"))
    assert Library("libmpi_tiny_f", 0, False) in known
    own, other = File("/opt/libtiny.so.1", 1), File("/opt/libmpi_tiny_f.so.1", 2)
    assert judged((own, other), made, 0, known) == ((), (), ())
    mapped = judged((File("/opt/libmpi.so.12", 3), other), made, 0, known)
    assert mapped.foreign == (File("/opt/libmpi.so.12", 3),) and not mapped.odd


def test_renamed_mpich_is_the_family_of_a_program_that_links_its_interface_alone(
    tmp_path: Path,
) -> None:
    mpich = compiled(tmp_path / "opt/libvendor.so.7", MPICH + WHOLE)
    fort = compiled(tmp_path / "opt/libvendorfort.so.7", CALLS_C + interface(), str(mpich))
    # Another's subroutine has such a name too, in a library that needs no MPI.
    tools = compiled(tmp_path / "opt/libtools.so.1", "void mpi_setup_(void) {}")
    code = "void mpi_setup_(void);" + program(more="mpi_setup_();")
    compiled(tmp_path / "opt/app/f", code, str(fort), str(tools))
    facts = scanned(tmp_path)
    request = Request(apps=("f",))
    assert image_family(facts, request) is AbiFamily.MPICH
    assert kept(facts).planned_file == "/opt/libvendor.so.7"
    made = planned(facts, host("mpich-5.0.2"), launcher=HYDRA, apps=("f",))
    assert made.names == ("libvendor.so.7",)
    assert "symbols" not in {f.check for f in checks.check(made) if f.severity.value == "error"}


def test_what_only_looks_like_fortrans_mpi_is_none(tmp_path: Path) -> None:
    """A library of big numbers, a tracer, and one that has only what starts."""
    image_tree(tmp_path)
    big = compiled(tmp_path / "opt/libbig.so.1", BIG_NUMBERS)
    uses = "void mpi_init(int *); int main(void) { int x; mpi_init(&x); return x; }"
    compiled(tmp_path / "opt/x/big", uses, str(big))
    mpich = str(tmp_path / "usr/lib/libmpich.so.12")
    trace = interface("PMPI_Init(0, 0)").replace("MPI_Comm_rank(0, r)", "0")
    tracer = compiled(tmp_path / "opt/libtrace.so.1", "int PMPI_Init(int *, char ***);" + trace, mpich)  # fmt: skip
    compiled(tmp_path / "opt/x/traced", program(), str(tracer))
    starts = compiled(tmp_path / "opt/libstarts.so.1", "void mpi_init_(int *e) { *e = 0; }")
    only = "void mpi_init_(int *); int main(void) { int e; mpi_init_(&e); return e; }"
    compiled(tmp_path / "opt/x/only", only, str(starts))
    facts = scanned(tmp_path)
    assert {m.path for m in facts.mpis if m.family is AbiFamily.UNKNOWN} == set()
    assert "/opt/x/big" not in {e.path for e in facts.consumers}


@pytest.mark.parametrize("words", [(), ("-static",)], ids=str)
@pytest.mark.parametrize("code", [ALONE, TINY], ids=["fortran", "c"])
def test_unknown_mpi_inside_of_a_program_is_found_and_stays_unknown(
    code: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    calls = program() if code is ALONE else MAIN + CALLS
    compiled(tmp_path / "opt/app/f", calls, str(archive(tmp_path / "a", code)), *words)
    compiled(tmp_path / "opt/app/plain", PLAIN)
    facts = scanned(tmp_path)
    (held,) = facts.consumers
    assert (held.path, held.holds) == ("/opt/app/f", "unknown")
    made = kept(facts)
    assert made.unknown_mpi and made.planned_file == "/opt/app/f"
    found = {f.check: f for f in checks.check(made)}
    assert "inside /opt/app/f" in found["mpi-unknown"].what and "static" in found
    assert not checks.refused(tuple(found.values()))


def test_fortrans_interface_inside_of_a_program_is_no_mpi(tmp_path: Path) -> None:
    tiny = compiled(tmp_path / "opt/libtiny.so.1", TINY)
    inside = archive(tmp_path / "a", CALLS_C + interface(), "libfort.a")
    compiled(tmp_path / "opt/app/f", program(), str(inside), str(tiny))
    facts = scanned(tmp_path)
    assert [e.holds for e in facts.consumers] == [""]
    assert kept(facts).planned_file == "/opt/libtiny.so.1"


def test_names_of_the_functions_that_start_mpi() -> None:
    assert {name.format("init", "INIT") for name in NAMES} <= FORTRAN_STARTS
    assert "MPI_Init" not in FORTRAN_STARTS


ARRAYS = "void mpi_send_f08ts_(void *a) {}"


def made_by(folder: Path, name: str, compiler: str, more: str = ARRAYS) -> str:
    """An MPI with its interface to Fortran, which needs a compiler's run time."""
    mpi = compiled(folder / f"{name}.so.12", MPICH + WHOLE)
    needs = [str(compiled(folder / compiler, "int x;"))] if compiler else []
    code = interface() + more
    words = ("-Wl,--no-as-needed", str(mpi), *needs)
    return str(compiled(folder / f"{name}fort.so.12", code, *words))


@pytest.mark.parametrize(
    ("calls", "image_has", "host_has", "own_stays"),
    [
        ("mpi_send_f08ts_", "libgfortran.so.5", "", True),  # Debian's program on Intel's MPI
        ("mpi_send_f08ts_", "", "libgfortran.so.5", True),
        ("mpi_send_f08ts_", "libgfortran.so.4", "libgfortran.so.5", True),
        ("mpi_send_f08ts_", "libgfortran.so.5", "libgfortran.so.5", False),
        ("mpi_comm_rank_", "libgfortran.so.5", "", False),
    ],
)
def test_arrays_by_descriptor_are_given_to_a_library_of_their_own_compiler(
    calls: str, image_has: str, host_has: str, own_stays: bool, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    own = made_by(root / "usr/lib", "libmpich", image_has)
    code = f"void {calls}(void *); void mpi_init_(int *); int main(void) {{ mpi_init_(0); {calls}(0); return 0; }}"
    compiled(root / "opt/app/f", code, own)
    made_by(tmp_path / "mpi/lib", "libmpi", host_has)
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": ""}
    mpi = in_prefix(tmp_path / "mpi", "for the test", environ)[0]
    made = planned(scanned(root), mpi, apps=("/opt/app/f",))
    assert made.staging
    brought = {f.target for f in made.staging.files} | {link for link, _ in made.staging.aliases}
    assert bool({"lib/libmpifort.so.12", "lib/libmpichfort.so.12"} & brought) is not own_stays
    left = [line.what for line in made.lines if line.kind == "left out"]
    assert ("libmpifort.so.12" in left) is own_stays
    found = {f.severity for f in checks.check(made) if f.check == "symbols"}
    assert found == {Severity.OK}
