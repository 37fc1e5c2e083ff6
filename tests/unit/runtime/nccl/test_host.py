"""Plugins of a made-up host, from files that gcc compiles; what is named, gone, damaged or hidden."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.compiled import compiled
from tests.support.nccl import ABORTS, Does, plugin
from tests.support.recorded import SITE

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.base.system import Machine
from fairlead.nccl.host import discover, providers_in, rules_of
from fairlead.nccl.model import HostNccl, NcclRules

CXI = "".join(
    f"void cxip_{name}(void) {{ puts(__func__); }}\n"
    for name in ("getinfo", "fabric", "domain", "ep_open", "mr_reg", "rma", "msg")
)
LIBFABRIC = f'#include <stdio.h>\n{CXI}void fi_getinfo(void) {{ puts("efa_"); }}\n'


def looked(root: Path, rules: NcclRules | None = None, **environ: str) -> HostNccl:
    (root / "etc").mkdir(exist_ok=True)
    view = Machine(environ, root)
    return discover(rules or NcclRules(), view, environ, root)


def names(found: HostNccl) -> list[str]:
    return [Path(network.plugin.path).name for network in found.networks]


def test_discover_profile_folder_comes_before_the_vendors(tmp_path: Path) -> None:
    plugin(tmp_path / "opt/site/2.19/plugin/lib/libnccl-net.so", release="1.9.2")
    plugin(tmp_path / "opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", release="1.16.3")
    rules = NcclRules(folders=("/opt/site/*/plugin/lib", "/opt/gone/lib"), source="the profile")
    found = looked(tmp_path, rules)
    assert names(found) == ["libnccl-net.so", "libnccl-net-ofi.so"]
    assert found.networks[0].found_by == "the profile"
    assert found.gone == ("/opt/gone/lib",)


def test_discover_links_to_one_file_are_one_plugin(tmp_path: Path) -> None:
    folder = tmp_path / "opt/amazon/ofi-nccl/lib"
    plugin(folder / "libnccl-net-ofi.so")
    (folder / "libnccl-net.so").symlink_to("libnccl-net-ofi.so")
    assert names(looked(tmp_path)) == ["libnccl-net-ofi.so"]


def test_discover_folder_of_a_loaded_module(tmp_path: Path) -> None:
    folder = tmp_path / "modules/nccl/lib"
    plugin(folder / "librccl-net.so")
    assert names(looked(tmp_path, LD_LIBRARY_PATH=str(folder))) == ["librccl-net.so"]


def test_discover_plugin_of_a_modules_variable_comes_first(tmp_path: Path) -> None:
    plugin(tmp_path / "opt/amazon/ofi-nccl/lib/libnccl-net.so")
    own = plugin(tmp_path / "modules/libnccl-net-ofi.so")
    link = own.with_name("libnccl-net.so")
    link.symlink_to(own.name)
    found = looked(tmp_path, NCCL_NET_PLUGIN=str(link))
    assert names(found) == ["libnccl-net-ofi.so", "libnccl-net.so"]
    assert found.networks[0].named == str(link) and not found.networks[1].named
    assert found.networks[0].names == ("libnccl-net-ofi.so", "libnccl-net.so")
    assert "NCCL_NET_PLUGIN" in found.networks[0].found_by
    lost = looked(tmp_path, NCCL_NET_PLUGIN="/nowhere/libnccl-net.so")
    assert names(lost) == ["libnccl-net.so"]


def test_discover_closure_missing_and_providers(tmp_path: Path) -> None:
    libraries = tmp_path / "opt/cray/libfabric/1.22.0/lib64"
    fabric = compiled(libraries / "libfabric.so.1", LIBFABRIC)
    lost = compiled(tmp_path / "elsewhere/libhwloc.so.15", "void hwloc(void) {}")
    cuda = compiled(tmp_path / "elsewhere/libcudart.so.12", "void cuda(void) {}")
    words = ["-Wl,--no-as-needed", str(fabric), str(lost), str(cuda)]
    plugin(tmp_path / "opt/site/lib/libnccl-net.so", words=words)
    found = looked(tmp_path, NcclRules(folders=("/opt/site/lib",)))
    [network] = found.networks
    assert [elf.name for elf in network.closure if elf.name != "libc.so.6"] == ["libfabric.so.1"]
    assert [name for name, _ in network.missing] == ["libhwloc.so.15"]
    assert network.providers == ("cxi",)
    assert network.plugin.runtime == "cuda12"


def test_discover_libraries_of_the_profile_come_before_the_systems(tmp_path: Path) -> None:
    site = compiled(tmp_path / "opt/site/libfabric/lib64/libfabric.so.1", LIBFABRIC)
    system = compiled(tmp_path / "usr/lib/libfabric.so.1", "void fi_getinfo(void) {}")
    vendor = compiled(tmp_path / "opt/cray/libfabric/1.22.0/lib64/libfabric.so.1", LIBFABRIC)
    module = compiled(tmp_path / "modules/libfabric.so.1", LIBFABRIC)
    words = ["-Wl,--no-as-needed", str(system)]
    plugin(tmp_path / "opt/site/lib/libnccl-net.so", words=words)
    rules = NcclRules(("/opt/site/lib",), libraries=("/opt/site/libfabric/lib64",))

    def taken(rules: NcclRules, **environ: str) -> Path:
        [network] = looked(tmp_path, rules, **environ).networks
        return Path(next(e.path for e in network.closure if e.soname == "libfabric.so.1"))

    assert taken(rules, LD_LIBRARY_PATH=str(module.parent)) == module
    assert taken(rules) == site
    assert taken(replace(rules, libraries=())) == system
    system.unlink()
    assert taken(replace(rules, libraries=())) == vendor


def test_discover_plugins_in_the_order_of_how_sure_they_are(tmp_path: Path) -> None:
    folders = {
        "named": "modules/one",
        "profile": "opt/site/lib",
        "path": "modules/two",
        "vendor": "opt/aws-ofi-nccl/lib",
        "system": "usr/lib",
    }
    for name, folder in folders.items():
        plugin(tmp_path / folder / f"libnccl-net-{name}.so")
    found = looked(
        tmp_path,
        NcclRules(folders=("/opt/site/lib",)),
        NCCL_NET_PLUGIN=str(tmp_path / "modules/one/libnccl-net-named.so"),
        LD_LIBRARY_PATH=str(tmp_path / "modules/two"),
    )
    assert names(found) == [f"libnccl-net-{name}.so" for name in folders]


def test_providers_of_a_few_mentions_are_none(tmp_path: Path) -> None:
    fabric = compiled(
        tmp_path / "libfabric.so.1", 'const char *order[] = {"cxi", "efa", "cxip_x"};'
    )
    assert providers_in(fabric) == ()


def test_discover_opened_library_is_part_of_the_closure(tmp_path: Path) -> None:
    compiled(tmp_path / "usr/lib/libgdrapi.so.2", "void gdr(void) {}")
    (tmp_path / "usr/lib/libgdrapi.so").symlink_to("libgdrapi.so.2")
    plugin(
        tmp_path / "opt/aws-ofi-nccl/lib/libnccl-net.so", does=Does(("libgdrapi.so", "libcuda.so"))
    )
    [network] = looked(tmp_path).networks
    assert [elf.name for elf in network.closure] == ["libgdrapi.so.2"]


def test_discover_damaged_and_other_files_do_not_stop_it(tmp_path: Path) -> None:
    folder = tmp_path / "opt/aws-ofi-nccl/lib"
    whole = plugin(folder / "libnccl-net-whole.so")
    (folder / "libnccl-net-cut.so").write_bytes(whole.read_bytes()[:900])
    (folder / "libnccl-net-empty.so").touch()
    (folder / "libnccl-net-folder.so").mkdir()
    (folder / "libnccl-net-lost.so").symlink_to("/nowhere/at/all")
    compiled(folder / "libnccl-net-other.so", "int nothing;")
    found = looked(tmp_path)
    assert names(found) == ["libnccl-net-whole.so"]
    assert sorted(Path(path).name for path, _ in found.damaged) == [
        "libnccl-net-cut.so",
        "libnccl-net-empty.so",
    ]
    assert all(why for _, why in found.damaged)


def test_discover_plugin_that_aborts_when_loaded_is_only_read(tmp_path: Path) -> None:
    plugin(tmp_path / "opt/aws-ofi-nccl/lib/libnccl-net.so", more=ABORTS)
    assert names(looked(tmp_path)) == ["libnccl-net.so"]


def test_discover_named_file_or_folder_is_the_only_one(tmp_path: Path) -> None:
    plugin(tmp_path / "opt/aws-ofi-nccl/lib/libnccl-net.so")
    own = plugin(tmp_path / "own/libnccl-net-own.so")
    view = Machine({}, tmp_path)
    for named in (own, own.parent):
        found = discover(NcclRules(), view, {}, tmp_path, str(named))
        assert names(found) == ["libnccl-net-own.so"]
        assert str(named) in found.networks[0].found_by


@pytest.mark.parametrize("kind", ["other", "cut", "empty folder"])
def test_discover_named_file_that_is_not_a_plugin_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it.so"
    if kind == "other":
        compiled(path, "int nothing;")
    elif kind == "cut":
        path.write_bytes(plugin(tmp_path / "whole.so").read_bytes()[:900])
    else:
        path.mkdir()
    with pytest.raises(FairleadError) as caught:
        discover(NcclRules(), Machine({}, tmp_path), {}, tmp_path, str(path))
    assert caught.value.code is ExitCode.USAGE
    [finding] = caught.value.findings
    assert finding.why and finding.remedy and str(path) in finding.what


def test_discover_devices_and_the_users_file(tmp_path: Path) -> None:
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    for name in ("cxi0", "cxi1", "infiniband/uverbs0", "gdrdrv", "cxi_user"):
        (tmp_path / "dev" / name).touch()
    (tmp_path / "home/u").mkdir(parents=True)
    (tmp_path / "home/u/.nccl.conf").write_text("NCCL_DEBUG=INFO\nNCCL_NET=Socket\n")
    found = looked(tmp_path, HOME="/home/u")
    assert found.devices == ("/dev/cxi0", "/dev/cxi1", "/dev/infiniband/uverbs0", "/dev/gdrdrv")
    assert found.user_conf == {"NCCL_DEBUG": "INFO", "NCCL_NET": "Socket"}
    (tmp_path / "own.conf").write_text("NCCL_NET=IB\n")
    assert looked(tmp_path, HOME="/home/u", NCCL_CONF_FILE="/own.conf").user_conf == {
        "NCCL_NET": "IB"
    }


def test_discover_nothing_is_nothing(tmp_path: Path) -> None:
    assert looked(tmp_path) == HostNccl()


def test_rules_of_a_site_without_a_table_are_empty() -> None:
    assert rules_of(SITE) == rules_of(None) == NcclRules()


def test_discover_a_plugin_replaced_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "opt/aws-ofi-nccl/lib/libnccl-net.so"
    plugin(path, (5, 6))
    assert looked(tmp_path).networks[0].plugin.interfaces["net"] == (5, 6)
    other = plugin(tmp_path / "new/libnccl-net.so", (9, 10))
    shutil.move(other, path)
    assert looked(tmp_path).networks[0].plugin.interfaces["net"] == (9, 10)


def test_discover_libraries_of_the_gpus_driver_with_what_they_need(tmp_path: Path) -> None:
    code = '#include <stdio.h>\nint init(void) { return puts(""); }'
    compiled(tmp_path / "usr/lib/libcuda.so.550.54", code, "-Wl,-soname,libcuda.so.1")
    (tmp_path / "usr/lib/libcuda.so.1").symlink_to("libcuda.so.550.54")
    compiled(tmp_path / "opt/elsewhere/libnvidia-ml.so.1", code)
    (tmp_path / "usr/lib/libdrm.so.2").write_text("cut")
    [driver] = looked(tmp_path).drivers
    assert driver.soname == "libcuda.so.1" and driver.needs["GLIBC"]
