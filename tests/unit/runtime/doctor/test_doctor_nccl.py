"""Doctor's look at NCCL's network plugin: on a recorded machine with changes, and a plugin that is really driven."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.support.machine import Recorded

from fairlead.doctor.checks.nccl import CHECK
from fairlead.doctor.fix import examine

NODE = "node-nccl-off"
PLUGIN = "/opt/nccl/lib/libnccl-net.so"
WELL = {f"drive_plugin {PLUGIN}": {"line": "moved"}}


def world(environ: dict[str, str] | None = None, **changed: Any) -> Recorded:
    made = Recorded(NODE, **changed)
    made.environ = {"SLURM_JOB_ID": "1", **(environ or {})} if environ is not None else made.environ
    return made


def there(**changes: Any) -> dict[str, Any]:
    """The recorded plugins, with changes to the only one or to what there is."""
    found = copy.deepcopy(Recorded(NODE).answers["net_plugins"])
    found["networks"][0] |= {k: changes.pop(k) for k in ("providers", "missing") if k in changes}
    return {"net_plugins": {**found, **changes}}


def said(made: Recorded) -> dict[str, tuple[str, str]]:
    found = [d.finding for d in examine(made, [CHECK])]
    assert all(f.check == "nccl" for f in found)
    return {f.what: (f.severity.value, f"{f.where} {f.why} {f.remedy}") for f in found}


def test_node_off_the_fabric_reports_each_reason() -> None:
    found = said(world())
    assert {severity for severity, _ in found.values()} == {"warning"}
    for text in (
        "a file with the name of NCCL's network plugin cannot be read",
        "NCCL_NET=Socket keeps NCCL off the fabric",
        "the libfabric under NCCL's network plugin does not know Slingshot",
        "NCCL's network plugin moves no messages on this node: the plugin did not initialise",
    ):
        assert any(what.startswith(text) for what in found), text


def test_whole_plugin_that_moves_messages_is_well() -> None:
    answers = there(providers=["cxi", "tcp"], damaged=[])
    assert said(world({}, **answers, **WELL)) == {
        "moved": (
            "ok",
            " in a folder of LD_LIBRARY_PATH; two processes of this node, host memory ",
        )
    }


@pytest.mark.parametrize("case", ["no gpu", "no job"])
def test_plugin_that_need_not_start_here_is_a_note(case: str) -> None:
    answers = there(providers=["cxi"], damaged=[], gpu="" if case == "no gpu" else "nvidia")
    made = world({}, **answers)
    if case == "no job":
        made.environ = {}
        made.answers["profile"] = {"site": None, "reason": ""}
    [(what, (severity, _))] = said(made).items()
    assert severity == "info" and "moves no messages" in what


def test_plugin_that_lacks_a_library_is_not_driven() -> None:
    answers = there(providers=["cxi"], damaged=[], missing=[["libhwloc.so.15", PLUGIN]])
    [(what, (severity, words))] = said(world({}, **answers)).items()
    assert what == "NCCL's network plugin lacks libhwloc.so.15" and severity == "warning"
    assert PLUGIN in words and "nccl.libraries" in words


@pytest.mark.parametrize(("gpu", "severity"), [("nvidia", "warning"), ("", "ok")])
def test_no_plugin_matters_where_gpus_and_the_fabric_need_one(gpu: str, severity: str) -> None:
    [(what, (found, _))] = said(world({}, net_plugins={"gpu": gpu})).items()
    assert found == severity and ("for Slingshot" in what) is (severity != "ok")


@pytest.mark.parametrize(("job", "severity"), [(True, "error"), (False, "info")])
def test_folder_of_the_profile_that_is_gone(job: bool, severity: str) -> None:
    made = world({}, net_plugins={"gpu": "nvidia", "gone": ["/opt/site/lib"]})
    origin = {"status": "documented", "source": "its guide", "read": "2026-06-01", "profile": "x"}
    profile = copy.deepcopy(Recorded("login-slingshot").answers["profile"])
    profile["site"]["nccl"] = {"folders": ["/opt/site/lib"]}
    profile["site"]["origins"]["nccl.folders"] = origin
    made.answers["profile"] = profile
    made.environ = {"SLURM_JOB_ID": "1"} if job else {}
    [(_, (found, words))] = said(made).items()
    assert found == severity and "/opt/site/lib" in words and "documents" in words
