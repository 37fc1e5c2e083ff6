"""Trees: symlinks stay inside, and what is found in a small one."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.compiled import CALLS, MAIN, MPICH, OPENMPI, OPENS, PLAIN, WHOLE, compiled
from tests.support.nccl import nccl, plugin

from fairlead.base.paths import resolve_in
from fairlead.base.serde import from_json, to_json
from fairlead.elf.facts import AbiFamily, ImageFacts
from fairlead.elf.mpi_symbols import asked_by
from fairlead.image.scan import scan_tree


def make_links(root: Path, links: dict[str, str]) -> None:
    for name, target in links.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink() and not path.exists():
            path.symlink_to(target)


@pytest.mark.parametrize(
    ("target", "leads_to"),
    [
        ("/etc/passwd", None),
        ("../../../../../../etc/hostname", None),
        ("/usr/file", "usr/file"),
        ("../usr/file", "usr/file"),
        ("../../../usr/file", "usr/file"),
        ("link", None),
        ("gone", None),
    ],
)
def test_resolve_in_follows_links_inside_its_root_only(
    target: str, leads_to: str | None, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / "usr").mkdir(parents=True)
    (root / "usr/file").touch()
    make_links(root, {"lib/link": target})
    found = resolve_in(root, root / "lib/link")
    assert found == (root / leads_to if leads_to else None)


def test_resolve_in_loop_of_two_ends(tmp_path: Path) -> None:
    make_links(tmp_path, {"a": "b", "b": "a"})
    assert resolve_in(tmp_path, tmp_path / "a") is None


PART = st.sampled_from(["a", "b", "c", "..", "."])
TARGET = st.builds(
    lambda absolute, parts: ("/" if absolute else "") + "/".join(parts),
    st.booleans(),
    st.lists(PART, min_size=1, max_size=6),
)
LINKS = st.dictionaries(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join), TARGET, max_size=6
)


@given(links=LINKS, start=st.lists(st.sampled_from("abc"), min_size=1, max_size=4))
def test_resolve_in_any_links_never_leave_the_root(links: dict[str, str], start: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "outer", "root")
        (root / "a").mkdir(parents=True)
        (root.parent / "b").touch()  # what an escape would find
        for name, target in links.items():
            try:
                make_links(root, {name: target})
            except OSError:
                continue  # its parent is a link to nowhere
        found = resolve_in(root, root / "/".join(start))
        if found is not None:
            assert found == root or root in found.parents
            assert os.path.realpath(found) == str(found)


def test_scan_tree_reads_each_file_once_and_stays_inside(tmp_path: Path) -> None:
    maps = Path("/proc/self/maps").read_text()
    libc = Path(re.search(r"/\S*/libc\.so\.6", maps)[0])  # type: ignore[index]
    lib = tmp_path / "usr/lib"
    lib.mkdir(parents=True)
    shutil.copy(libc.resolve(), lib / "libc.so.6")
    make_links(
        tmp_path,
        {"lib": "usr/lib", "usr/lib/out.so": "/etc/ld.so.cache", "usr/lib/loop.so": "loop.so"},
    )
    (lib / "libfake.so.1").write_bytes(b"\x7fELF" + bytes(200))
    (lib / "script.so").write_text("GROUP ( libc.so.6 )" * 10)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME=x\nPRETTY_NAME="Small 1"\n')
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/bin/python3.11").touch()
    facts = scan_tree(tmp_path)
    assert facts.files == 1
    assert facts.glibc == (os.confstr("CS_GNU_LIBC_VERSION") or "").split()[1]
    assert (facts.os, facts.python) == ("Small 1", "3.11")
    assert facts.mpis == () and facts.consumers == ()


def test_scan_glibc_is_the_one_that_programs_are_started_with(tmp_path: Path) -> None:
    """Not that of a package with a C library of its own, even if that is newer or nearer to the root."""
    for folder, version in (("usr/lib/x86_64-linux-gnu", "2.31"), ("opt/gnu", "2.99")):
        versions = tmp_path / "versions"
        versions.write_text(f"GLIBC_{version} {{ global: f; }};")
        script = f"-Wl,--version-script={versions}"
        compiled(tmp_path / folder / "libc.so.6", "int f(void) { return 0; }", "-nostdlib", script)
        compiled(tmp_path / folder / "ld-linux-x86-64.so.2", "int g(void) { return 0; }", "-nostdlib")  # fmt: skip
    make_links(tmp_path, {"lib64": "usr/lib/x86_64-linux-gnu"})
    own = "-Wl,--dynamic-linker=/lib64/ld-linux-x86-64.so.2"
    other = "-Wl,--dynamic-linker=/opt/gnu/ld-linux-x86-64.so.2"
    for name, words in (("a", own), ("b", own), ("c", other)):
        compiled(tmp_path / "usr/bin" / name, PLAIN, words)
    facts = scan_tree(tmp_path)
    assert facts.glibc == "2.31"
    assert facts.glibc_files["libc.so.6"] == "/usr/lib/x86_64-linux-gnu/libc.so.6"


def test_scan_knows_which_pieces_of_a_run_time_are_anywhere_in_the_tree(tmp_path: Path) -> None:
    for place in ("usr/lib/libc.so.6", "opt/x/lib/libdl.so.2", "usr/lib/libgcc_s.so.1"):
        compiled(tmp_path / place, "int x;")
    facts = scan_tree(tmp_path)
    assert facts.runtime == ("libc.so.6", "libdl.so.2", "libgcc_s.so.1")
    assert set(facts.glibc_files) == {"libc.so.6"}


def test_scan_tree_of_an_empty_folder_knows_nothing(tmp_path: Path) -> None:
    facts = scan_tree(tmp_path)
    assert (facts.glibc, facts.os, facts.files) == ("", "", 0)


def test_scan_links_out_of_the_tree_are_not_followed_on_this_machine(tmp_path: Path) -> None:
    """A hostile folder's /opt and /usr/bin lead nowhere in it, whatever lies there outside of it."""
    outside = tmp_path / "outside/app/bin"
    outside.mkdir(parents=True)
    (outside / "python3.99").touch()
    root = tmp_path / "root"
    (root / "usr").mkdir(parents=True)
    (root / "opt").symlink_to(tmp_path / "outside")
    (root / "usr/bin").symlink_to(outside)
    assert scan_tree(root).python == ""
    (root / "usr/local/bin").mkdir(parents=True)
    (root / "usr/local/bin/python3.12").touch()
    assert scan_tree(root).python == "3.12"


OLD_TAGS = "-Wl,--disable-new-dtags"


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MPI in a versioned prefix with links to it, as Spack's views and modules have."""
    root = tmp_path_factory.mktemp("view") / "root"
    lib = root / "opt/mpich-4.0.9/lib"
    mpi = str(compiled(lib / "libmpich.so.12", MPICH))
    middle = compiled(root / "usr/lib/libmiddle.so.1", CALLS.replace("call(", "middle("), mpi)
    uses = "int middle(void); int main(void) { return middle(); }"
    apart = (OLD_TAGS,)
    compiled(root / "opt/app/free", MAIN + CALLS, mpi)
    compiled(root / "opt/app/tied", MAIN + CALLS, mpi, OLD_TAGS, "-Wl,-rpath,/opt/mpich/lib")
    compiled(root / "opt/app/above", uses, str(middle), *apart, "-Wl,-rpath,/opt/view/lib64")
    newer = compiled(root / "usr/lib/libnewer.so.1", CALLS.replace("call(", "middle("), mpi,
                     "-Wl,--enable-new-dtags,-rpath,/opt/mpich/lib")  # fmt: skip
    compiled(root / "opt/app/below", uses, str(newer), *apart, "-Wl,-rpath,/opt/view/lib64")
    compiled(root / "opt/app/python3.11", OPENS, OLD_TAGS, "-Wl,-rpath,$ORIGIN/../mpich/lib")
    compiled(
        root / "opt/app/token",
        MAIN + CALLS,
        mpi,
        OLD_TAGS,
        "-Wl,-rpath,/opt/${ORIGIN}/x:/opt/view/$LIB",
    )
    make_links(root, {"opt/mpich": "mpich-4.0.9", "opt/view/lib64": "../mpich/lib"})
    return root


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("free", False),
        ("tied", True),
        ("above", True),
        ("below", False),
        ("python3.11", True),
        ("token", True),
    ],
)
def test_scan_dt_rpath_is_resolved_inside_the_image_and_inherited(
    view: Path, name: str, tied: bool
) -> None:
    facts = scan_tree(view)
    found = {e.path: e.tied for e in facts.consumers}.get(f"/opt/app/{name}", ())
    assert found == (("/opt/mpich-4.0.9/lib/libmpich.so.12",) if tied else ())


def test_scan_program_that_loads_a_tied_library_leads_to_the_mpi(view: Path) -> None:
    facts = scan_tree(view)
    assert facts.leads["/opt/app/above"] == {"libmiddle.so.1": "/usr/lib/libmiddle.so.1"}
    assert set(facts.leads["/usr/lib/libmiddle.so.1"].values()) == {facts.mpis[0].path}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_scan_link_into_a_folder_that_may_not_be_read_leads_nowhere() -> None:
    """A tree that root has unpacked has closed folders, and scripts that name files in them: /root/.profile."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        closed = Path(folder, "root")
        closed.mkdir()
        (closed / "libmpi.so.12").touch()
        Path(folder, "libmpi.so.12").symlink_to("root/libmpi.so.12")
        closed.chmod(0o700)
        os.seteuid(20001)
        try:
            assert resolve_in(Path(folder), Path(folder, "libmpi.so.12")) is None
            assert scan_tree(Path(folder)).files == 0
        finally:
            os.seteuid(0)


@pytest.mark.parametrize(
    "name", ["MPI_Init.oct", "solve.mex", "solve.mexa64", "mpi.node", "mpi.cmxs"]
)
def test_scan_library_under_the_name_of_another_programs_modules_is_read(
    name: str, tmp_path: Path
) -> None:
    """Octave opens `MPI_Init.oct`: packages install it without x bits."""
    mpi = compiled(tmp_path / "usr/lib/libmpi.so.40", OPENMPI)
    made = compiled(tmp_path / "made.so", CALLS, str(mpi))
    module = tmp_path / "usr/lib/octave" / name
    module.parent.mkdir()
    made.rename(module)
    module.chmod(0o644)
    facts = scan_tree(tmp_path)
    assert [e.path for e in facts.consumers] == [f"/usr/lib/octave/{name}"]
    assert asked_by(facts, facts.consumers[0]) == {"libmpi.so.40": AbiFamily.OPENMPI}


def test_scan_renamed_soname_is_an_mpi_and_asked_for(tmp_path: Path) -> None:
    mpi = compiled(tmp_path / "usr/lib/libvendor.so.7", OPENMPI + WHOLE)
    compiled(tmp_path / "opt/app/x", MAIN + CALLS, str(mpi))
    facts = scan_tree(tmp_path)
    assert [m.family for m in facts.mpis] == [AbiFamily.OPENMPI]
    assert asked_by(facts, facts.consumers[0]) == {"libvendor.so.7": AbiFamily.OPENMPI}


def gpu_tree(root: Path) -> Path:
    """torch with the NCCL of its wheel, the system's own, a plugin, a driver's stub and a compatible driver."""
    site = root / "opt/venv/lib/python3.11/site-packages"
    wheel = nccl(site / "nvidia/nccl/lib/libnccl.so.2", "2.27.5+cuda12.9")
    words = ["-Wl,--no-as-needed", str(wheel), "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib"]
    compiled(site / "torch/lib/libtorch_cuda.so", "int torch;", *words)
    system = nccl(root / "usr/lib/x86_64-linux-gnu/libnccl.so.2.19.3", "2.19.3+cuda12.3")
    system.with_name("libnccl.so.2").symlink_to("libnccl.so.2.19.3")
    named = compiled(root.parent / "made/libnccl.so.2", "int nothing;")
    compiled(root / "opt/app/tool", PLAIN, "-Wl,--no-as-needed", str(named))
    plugin(root / "opt/hpcx/plugin/lib/libnccl-net.so", (6, 7), name="IBext_v7")
    (root / "etc").mkdir(parents=True)
    (root / "etc/nccl.conf").write_text("# site\nNCCL_DEBUG=WARN\nNCCL_NET=IB\n")
    compiled(site / "nvidia/cuda_runtime/lib/libcudart.so.12", "int cudart;")
    for folder in ("usr/local/cuda/compat", "usr/local/cuda/lib64/stubs"):
        compiled(root / folder / "libcuda.so.1", "int cuInit;")
    return root


def test_scan_finds_every_nccl_plugin_and_what_maps_which(tmp_path: Path) -> None:
    facts = scan_tree(gpu_tree(tmp_path / "root"))
    site = "/opt/venv/lib/python3.11/site-packages"
    found = {one.path: (one.version, one.runtime) for one in facts.nccl}
    assert found == {
        f"{site}/nvidia/nccl/lib/libnccl.so.2": ("2.27.5", "cuda12.9"),
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2.19.3": ("2.19.3", "cuda12.3"),
    }
    assert facts.nccl_mapped == {
        f"{site}/torch/lib/libtorch_cuda.so": f"{site}/nvidia/nccl/lib/libnccl.so.2",
        "/opt/app/tool": "/usr/lib/x86_64-linux-gnu/libnccl.so.2.19.3",
    }
    [own] = facts.net_plugins
    assert (own.path, own.name) == ("/opt/hpcx/plugin/lib/libnccl-net.so", "IBext_v7")
    assert facts.nccl_conf == {"NCCL_DEBUG": "WARN", "NCCL_NET": "IB"}
    assert facts.drivers == ("/usr/local/cuda/compat/libcuda.so.1",)
    run_time = f"{site}/nvidia/cuda_runtime/lib/libcudart.so.12"
    assert facts.gpu_libraries == {"libcudart.so.12": run_time}


def test_scan_facts_of_nccl_survive_the_cache(tmp_path: Path) -> None:
    facts = scan_tree(gpu_tree(tmp_path / "root"))
    assert from_json(ImageFacts, json.loads(json.dumps(to_json(facts)))) == facts


def test_scan_damaged_nccl_and_plugin_are_left_out(tmp_path: Path) -> None:
    root = tmp_path / "root"
    whole = plugin(tmp_path / "libnccl-net.so")
    (root / "usr/lib").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc/nccl.conf").symlink_to("/nowhere")
    for name, data in (
        ("libnccl-net.so", whole.read_bytes()[:800]),
        ("libnccl.so.2", b"\x7fELF"),
        ("librccl.so.1", b"\x7fELF\2\1\1" + b"\xff" * 500),
    ):
        (root / "usr/lib" / name).write_bytes(data)
    facts = scan_tree(root)
    assert (facts.nccl, facts.net_plugins, facts.nccl_conf) == ((), (), {})


def test_scan_reads_a_script_that_is_given_to_a_shell(tmp_path: Path) -> None:
    app = tmp_path / "opt/app"
    app.mkdir(parents=True)
    for name, mode in (("run.sh", 0o644), ("start.sh", 0o755), ("notes", 0o644)):
        (app / name).write_text("#!/bin/sh\nmpirun -n 2 /opt/app/solver\n")
        (app / name).chmod(mode)
    facts = scan_tree(tmp_path)
    line = ("mpirun", "-n", "2", "/opt/app/solver")
    assert facts.commands == {"/opt/app/run.sh": (line,), "/opt/app/start.sh": (line,)}
    assert set(facts.programs) == {"/opt/app/start.sh"}  # the other cannot be started by itself
