"""What a launch wants of NCCL, from request, site, image and machine; and the options that say so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from tests.support.nccl import gpu_image, plugin
from tests.support.recorded import ROOT_ENGINE, SITE, host

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.base.serde import from_json, to_json
from fairlead.cli.options import Planning, _plugin
from fairlead.detect.capture import Capture
from fairlead.detect.model import SiteFacts
from fairlead.detect.network import nccl_host
from fairlead.elf.facts import ImageFacts
from fairlead.image.open import Image
from fairlead.launchers.model import Shape
from fairlead.nccl.model import Ask
from fairlead.session import carry
from fairlead.session.choose import Situation
from fairlead.session.model import Choices
from fairlead.session.network import ask
from fairlead.site.model import Fabric, NcclSite, Scheduler
from fairlead.site.resolved_paths import NOTHING
from fairlead.swap.model import Request

THERE = replace(
    SITE,
    fabric=Fabric("slingshot"),
    nccl=NcclSite(folders=("/nowhere/plugin",), interfaces=("hsn",)),
    scheduler=Scheduler(directives=("-C gpu",)),
)


def situation(
    tmp_path: Path,
    facts: ImageFacts | None = None,
    environ: dict[str, str] | None = None,
    **more: Any,
) -> Situation:
    changes = {"capture": None, "by_profile": False, "site": THERE, "engine": ROOT_ENGINE, **more}
    record = {"env": {"NCCL_NET_PLUGIN": "spcx"}}
    image = Image("x", "/x.sif", "sif", 0, "", True, facts or gpu_image(), record)
    variables = {"HOME": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path / "lib"), **(environ or {})}
    return Situation(
        Choices(), image, changes.pop("request", Request(nccl="host")), changes.pop("site"),
        changes["capture"], changes["by_profile"], NOTHING, changes["engine"], variables,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def plugin_here(tmp_path: Path) -> None:
    plugin(tmp_path / "lib/libnccl-net.so")


def wanted(found: Situation, nodes: int = 2, on_gpus: bool = False) -> Ask:
    return ask(found, nodes, on_gpus, None)


def test_ask_looks_at_the_machine_for_an_image_with_nccl(tmp_path: Path) -> None:
    found = wanted(situation(tmp_path))
    assert found.host
    assert [Path(n.plugin.path).name for n in found.host.networks][:1] == ["libnccl-net.so"]
    assert found.host.gone == ("/nowhere/plugin",)
    assert (found.nodes, found.fabric, found.rules.interfaces) == (2, "slingshot", ("hsn",))
    assert found.image == {"NCCL_NET_PLUGIN": "spcx"}


def test_ask_looks_at_nothing_where_nothing_is_wanted(tmp_path: Path) -> None:
    assert wanted(situation(tmp_path, replace(gpu_image(), nccl=()))).host is None
    assert wanted(situation(tmp_path, request=Request())).host is None
    assert wanted(situation(tmp_path, request=Request(nccl="image"))).host is None


@pytest.mark.parametrize(
    ("request_", "engine", "on_gpus", "gpus"),
    [
        (Request(), ROOT_ENGINE, False, False),
        (Request(), ROOT_ENGINE, True, True),
        (Request(gpu=True), ROOT_ENGINE, False, True),
        (Request(shape=Shape(gpus=1)), ROOT_ENGINE, False, True),
        (Request(engine_args=("--nv",)), ROOT_ENGINE, False, True),
        (Request(), replace(ROOT_ENGINE, options=("--rocm",)), False, True),
    ],
)
def test_ask_ranks_get_gpus(tmp_path: Path, request_, engine, on_gpus, gpus) -> None:
    found = wanted(situation(tmp_path, request=request_, engine=engine), on_gpus=on_gpus)
    assert found.gpus is gpus and (found.host is not None) is gpus


def test_ask_users_files_and_shell_and_options_in_that_order(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_DEBUG=WARN\nNCCL_CROSS_NIC=0\n")
    request = Request(nccl="host", nccl_env={"NCCL_DEBUG": "INFO"})
    found = wanted(situation(tmp_path, request=request))
    assert found.user == {"NCCL_DEBUG": "INFO", "NCCL_CROSS_NIC": "0"}


def test_ask_network_options_of_the_job(tmp_path: Path) -> None:
    request = Request(nccl="host", shape=Shape(extra=("--network=x",)))
    found = wanted(
        situation(tmp_path, environ={"SLURM_NETWORK": "disable_rdzv_get"}, request=request)
    )
    assert found.job == ("--network=x", "-C gpu", "--network=disable_rdzv_get")


def capture(nccl: Any) -> Capture:
    return Capture(
        "login1", "", "", THERE, "", ROOT_ENGINE, (host(),), SiteFacts("login1", 0), nccl=nccl
    )


def test_ask_a_captured_machine_replays_and_an_older_capture_is_unknown(tmp_path: Path) -> None:
    seen = nccl_host(THERE, {"LD_LIBRARY_PATH": str(tmp_path / "lib")})
    kept = from_json(Capture, to_json(capture(seen)))
    for path in (tmp_path / "lib").iterdir():
        path.unlink()
    found = wanted(situation(tmp_path, capture=kept))
    assert found.host == seen and found.host.networks
    assert wanted(situation(tmp_path, capture=capture(None))).host is None
    assert wanted(situation(tmp_path, capture=kept, by_profile=True)).host is None


def test_ask_file_that_is_not_a_plugin_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "libnccl-net.so"
    other.write_text("no")
    with pytest.raises(FairleadError):
        wanted(situation(tmp_path, request=Request(nccl=str(other))))


def test_request_takes_the_users_variables_of_nccl() -> None:
    environ = {
        "NCCL_DEBUG": "WARN",
        "FI_PROVIDER": "cxi",
        "APPTAINERENV_NCCL_NET": "IB",
        "PATH": "/bin",
        "FI_PROVIDER_PATH": "/opt/host/modules",  # of this machine
        "NCCL_CROSS_NIC": "1",
    }
    request = planning().request(2, (), {"NCCL_DEBUG": "INFO", "OTHER": "x"}, environ)
    assert request.nccl_env == {
        "NCCL_DEBUG": "INFO",
        "FI_PROVIDER": "cxi",
        "NCCL_NET": "IB",
        "NCCL_CROSS_NIC": "1",
    }
    assert request.nccl == "auto"


def planning(**changes: Any) -> Planning:
    defaults: dict[str, Any] = {
        "mpi": "host", "site": None, "launcher": None, "engine": None, "apps": (), "binds": (),
        "engine_args": (), "require_signature": False, "comm": None, "unpack": False, "nccl": "auto",
    }  # fmt: skip
    return Planning(**{**defaults, **changes})


def test_option_takes_words_and_paths_only(tmp_path: Path) -> None:
    context, option = click.Context(click.Command("x")), click.Option(["--nccl"])
    for word in ("auto", "host", "image"):
        assert _plugin(context, option, word) == word
    there = tmp_path / "lib/libnccl-net.so"
    assert _plugin(context, option, str(there)) == str(there)
    for wrong in ("hots", "/nowhere/lib.so", ""):
        with pytest.raises(click.BadParameter):
            _plugin(context, option, wrong)


@pytest.mark.parametrize(
    ("mpi", "carry_", "replaces", "names"),
    [
        ("host", (), "libfabric", ()),
        ("container", (), "libfabric", ("libfabric",)),  # as the site does
        ("container", (), "mpi", ()),
        ("container", ("ucx",), "libfabric", ("ucx",)),
        ("container", ("none",), "libfabric", ()),
        ("container", ("libfabric", "libfabric"), "none", ("libfabric",)),
    ],
)
def test_libraries_below_the_images_mpi_are_those_asked_for_or_the_sites(
    tmp_path: Path, mpi: str, carry_: tuple[str, ...], replaces: str, names: tuple[str, ...]
) -> None:
    site = replace(THERE, mpi=replace(THERE.mpi, replaces=replaces))
    made = situation(tmp_path, request=Request(mpi=mpi, carry=carry_), site=site)
    assert carry.wanted(made) == names


def test_library_that_is_not_on_this_machine_is_refused(tmp_path: Path) -> None:
    facts = replace(gpu_image(), arch="AArch64")
    made = situation(tmp_path, facts, request=Request(mpi="container", carry=("libfabric",)))
    with pytest.raises(FairleadError) as caught:
        carry.carried(made)
    assert caught.value.code is ExitCode.PREFLIGHT_REFUSED
    assert "libfabric for AArch64" in caught.value.findings[0].what


def test_library_of_another_machine_is_left_out_with_a_word(tmp_path: Path) -> None:
    made = situation(
        tmp_path, request=Request(mpi="container", carry=("libfabric",)), by_profile=True
    )
    assert carry.carried(made) == ()
    [finding] = carry.findings(made)
    assert "libfabric" in finding.what
