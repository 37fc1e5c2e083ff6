"""Which NCCL a process maps, and which of several plugins serves it."""

from __future__ import annotations

from dataclasses import replace

from tests.support.nccl import gpu_image, library_of, network, plugin_of

from fairlead.elf.facts import ImageFacts, NcclLibrary
from fairlead.nccl.choose import choose, mapped, others

SYSTEM = replace(
    library_of("2.19.3", "cuda12.3"), path="/usr/lib/x86_64-linux-gnu/libnccl.so.2.19.3"
)


def with_both(mapped_by: dict[str, str]) -> ImageFacts:
    return replace(gpu_image("2.27.5"), nccl=(SYSTEM, library_of("2.27.5")), nccl_mapped=mapped_by)


def test_mapped_is_what_most_files_find() -> None:
    facts = with_both({"/a.so": SYSTEM.path, "/b.so": SYSTEM.path, "/c.so": library_of().path})
    assert mapped(facts) == SYSTEM
    assert [one.version for one in others(facts)] == ["2.27.5"]


def test_mapped_without_a_link_is_that_of_a_python_package() -> None:
    found = mapped(with_both({}))
    assert found and found.version == "2.27.5"


def test_mapped_of_an_image_without_nccl_is_none() -> None:
    assert mapped(replace(gpu_image(), nccl=())) is None
    assert others(replace(gpu_image(), nccl=())) == ()


def test_two_copies_of_one_release_are_one() -> None:
    copy = replace(library_of("2.27.5"), path="/opt/other/libnccl.so.2")
    assert others(replace(gpu_image("2.27.5"), nccl=(library_of("2.27.5"), copy))) == ()


def at(folder: str, versions: range = range(2, 12), release: str = "1.18.0", **more):
    return network(plugin_of(versions, release, path=f"{folder}/libnccl-net.so", **more))


def paths(library: NcclLibrary, *networks) -> tuple[str, dict[str, str]]:
    found = choose(library, networks)
    assert found.host
    return found.host.plugin.path, {n.plugin.path: why for n, why in found.left}


def test_choose_takes_the_first_that_serves() -> None:
    best, left = paths(library_of(), at("/one"), at("/two"))
    assert best == "/one/libnccl-net.so"
    assert "comes first" in left["/two/libnccl-net.so"]


def test_choose_leaves_one_without_a_common_interface() -> None:
    best, left = paths(
        library_of("2.11.4", "cuda11.4"), at("/new", range(6, 12), "1.19.2"), at("/old")
    )
    assert best == "/old/libnccl-net.so"
    assert "no version of the net interface" in left["/new/libnccl-net.so"]


def test_choose_leaves_one_for_another_processor() -> None:
    best, left = paths(library_of(), at("/arm", machine="AArch64"), at("/x64"))
    assert best == "/x64/libnccl-net.so"
    assert "AArch64" in left["/arm/libnccl-net.so"]


def test_choose_takes_the_variant_of_the_images_cuda() -> None:
    variants = at("/store/cuda13", runtime="cuda13"), at("/store/cuda12", runtime="cuda12")
    assert paths(library_of(runtime="cuda12.4"), *variants)[0] == "/store/cuda12/libnccl-net.so"
    assert paths(library_of(runtime="cuda13.1"), *variants)[0] == "/store/cuda13/libnccl-net.so"
    by_folder = at("/store/cuda13"), at("/store/cuda12")
    assert paths(library_of(runtime="cuda12.4"), *by_folder)[0] == "/store/cuda12/libnccl-net.so"


def test_choose_leaves_one_with_a_missing_library() -> None:
    broken = replace(at("/broken"), missing=(("libhwloc.so.15", "/broken/libnccl-net.so"),))
    best, left = paths(library_of(), broken, at("/whole"))
    assert best == "/whole/libnccl-net.so"
    assert "libhwloc.so.15" in left["/broken/libnccl-net.so"]


def test_choose_for_rccl_prefers_a_plugin_of_its_name() -> None:
    rccl = library_of("2.20.5", "rocm6.2", kind="rccl")
    theirs = network(plugin_of(path="/opt/x/librccl-net.so"))
    assert paths(rccl, at("/one"), theirs)[0] == "/opt/x/librccl-net.so"


def test_choose_where_none_serves_takes_one_for_the_checks_to_name() -> None:
    found = choose(library_of("2.11.4"), [at("/new", range(6, 12), "1.19.2")])
    assert found.host and not found.interface
    assert choose(library_of(), []).host is None
