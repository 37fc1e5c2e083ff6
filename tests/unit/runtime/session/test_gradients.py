"""What carries gradients, as a function of facts; and what of it reaches a plan and a rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.recorded import ROOT_ENGINE, SITE, image, planned

from fairlead.base.comm_backend import REGISTRY, CommFacts
from fairlead.base.comm_names import PLUGIN, VARIABLE
from fairlead.base.errors import ExitCode, FairleadError, Severity
from fairlead.comm.settings import settings
from fairlead.image.open import Image
from fairlead.launchers.model import Shape
from fairlead.session.gradients import asked_for, choose, facts_of, onto
from fairlead.site.layers import load
from fairlead.site.model import Gpu, Gradients, Origin, Status
from fairlead.site.resolved_paths import NOTHING, Here
from fairlead.swap.model import Request

MPI4PY = "/opt/python/lib/python3.11/site-packages/mpi4py/MPI.mpich.so"
HOROVOD = "/opt/python/lib/python3.11/site-packages/horovod/tensorflow/mpi_lib.so"
CUDA = {"torch": "2.13.0", "nvidia-nccl-cu13": "2.27.7"}
PLAIN = CommFacts(image="x", modules=(MPI4PY,), wheels={}, site="s")
GPUS = replace(PLAIN, wheels=CUDA, gpus="nvidia", gpus_given=True)


@pytest.mark.parametrize(
    ("changes", "backend", "why"),
    [
        ({}, "native", "the C++ core"),
        ({"no_core": "no compiler"}, "mpi4py", "the core is not available: no compiler"),
        ({"modules": (MPI4PY, HOROVOD)}, "native", "the C++ core"),
        ({"asked": "horovod", "asked_by": "--comm", "modules": (HOROVOD,)}, "horovod", "--comm asks for it"),
        ({"asked": "mpi4py", "asked_by": "$V"}, "mpi4py", "$V asks for it"),
        ({"asked": "auto", "asked_by": "--comm"}, "native", "the C++ core"),
        # A site's wish
        ({"wish": "mpi4py", "wish_by": "seen"}, "mpi4py", "the profile s says so (seen)"),
        ({"wish": "dl_comm", "plugin": "/p", "plugin_named": True}, "dl_comm", "the profile s says so"),
        ({"wish": "dl_comm", "plugin_named": True}, "native", "the C++ core"),
        ({"wish": "dl_comm", "plugin_named": True, "unseen": True}, "dl_comm", "the profile s says so"),
        ({"wish": "dl_comm", "plugin": "/p", "asked": "native", "asked_by": "--comm"}, "native", "asks"),
        # GPUs
        ({"wheels": CUDA, "gpus": "nvidia", "gpus_given": True}, "nccl", "torch 2.13.0 has NCCL"),
        ({"wheels": {"torch": "2.13.0+rocm7"}, "gpus": "amd", "gpus_given": True}, "nccl", "has NCCL"),
        ({"wheels": CUDA, "gpus": "nvidia", "gpus_given": True, "ordered": True}, "native", "the C++ core"),
        ({"wheels": CUDA, "gpus": "nvidia"}, "native", "the C++ core"),
        ({"wheels": CUDA, "gpus_given": True}, "native", "the C++ core"),
        ({"wheels": CUDA, "gpus": "intel", "gpus_given": True}, "native", "the C++ core"),
        ({"wheels": {"torch": "2.13.0+cpu"}, "gpus": "nvidia", "gpus_given": True}, "native", "the C++ core"),
        ({"wheels": CUDA, "gpus": "nvidia", "gpus_given": True, "wish": "native"}, "native", "profile"),
        ({"wheels": None, "asked": "nccl", "asked_by": "--comm"}, "nccl", "asks for it"),
    ],
)  # fmt: skip
def test_choice(changes: dict[str, Any], backend: str, why: str) -> None:
    facts = replace(PLAIN, **changes)
    made = choose(facts)
    assert made.backend == backend and why in made.why
    assert {made.backend, *(o.backend for o in made.others)} == set(REGISTRY.names())
    assert all(o.why for o in made.others)
    assert not any(f.severity is Severity.ERROR for f in made.findings)
    assert choose(facts) == made


@pytest.mark.parametrize(
    ("asked", "changes", "why"),
    [
        ("horovod", {}, "the image has no Horovod that was built with MPI"),
        (
            "horovod",
            {"modules": (HOROVOD.replace("tensorflow", "torch"),)},
            "not built for TensorFlow",
        ),
        ("dl_comm", {}, "the profile s names no folder of it"),
        ("dl_comm", {"plugin_named": True}, "is not on this machine"),
        ("nccl", {}, "the image has no torch"),
        (
            "nccl",
            {"wheels": {"torch": "2.13.0+cpu"}},
            "torch 2.13.0+cpu of the image was built without it",
        ),
        ("nccl", {"wheels": CUDA, "gpus": "intel"}, "Intel's"),
        ("native", {"no_core": "no compiler"}, "no compiler"),
        ("horovod", {"modules": (HOROVOD,), "ordered": True}, "FAIRLEAD_COMM_DETERMINISTIC is set"),
        ("mpi4py", {"modules": ()}, "the image has no mpi4py"),
    ],
)
def test_backend_that_is_asked_for_and_cannot_be_had_is_an_error(
    asked: str, changes: dict[str, Any], why: str
) -> None:
    made = choose(replace(PLAIN, asked=asked, asked_by="--comm", **changes))
    (refused,) = made.findings
    assert (made.backend, refused.severity, refused.check) == (
        asked,
        Severity.ERROR,
        "comm-backend-absent",
    )
    assert why in refused.why and refused.remedy


def test_wish_of_a_site_that_cannot_be_had_is_a_warning_and_never_silent() -> None:
    (warned,) = choose(replace(PLAIN, wish="horovod")).findings
    assert warned.severity is Severity.WARNING and "not horovod as site s prefers" in warned.what
    assert "tensorflow-horovod" in warned.remedy


def test_what_is_unknown_is_reported_and_left_to_the_ranks() -> None:
    made = choose(replace(PLAIN, wheels=None))
    assert {o.backend: o.possible for o in made.others}["nccl"] is None
    forced = choose(replace(GPUS, asked="nccl", asked_by="--comm", gpus_given=False))
    (output,) = forced.findings
    assert output.severity is Severity.INFO and "--gpus-per-rank 1" in output.why


def test_ranks_are_configured_by_variable_what_they_would_not_take_by_themselves() -> None:
    assert choose(PLAIN).env == {} == choose(replace(PLAIN, no_core="none")).env
    assert choose(GPUS).env == {VARIABLE: "nccl"}
    assert choose(replace(PLAIN, asked="native", asked_by="--comm")).env == {VARIABLE: "native"}
    plugin = choose(replace(PLAIN, wish="dl_comm", plugin="/site/dl"))
    assert plugin.env == {VARIABLE: "dl_comm", PLUGIN: "/site/dl"}
    plan = onto(planned(), plugin)
    assert plan.env[PLUGIN] == "/site/dl"
    assert ("/site/dl", "/site/dl", True) in [(b.source, b.target, b.read_only) for b in plan.binds]
    assert {"env", "bind"} <= {line.kind for line in plan.lines if "/site/dl" in line.what}
    assert onto(planned(), choose(PLAIN)) == planned()
    assert {VARIABLE, PLUGIN} <= {setting.name for setting in settings()}


def facts(request: Request, *, here: Here = NOTHING, **site: Any) -> CommFacts:
    record = {"packages": {"wheel": {"Torch": "2.13.0", "nvidia_nccl-cu13": "2.27"}}}
    found = Image("x", "/x.sif", "sif", 1, "", False, image(), record)
    return facts_of(found, replace(SITE, **site), here, ROOT_ENGINE, request, {"PATH": "/none"})


def test_facts_of_an_image_a_site_and_a_request() -> None:
    plain = facts(Request(ranks=2))
    assert plain.wheels == {"torch": "2.13.0", "nvidia-nccl-cu13": "2.27"}
    assert any("/mpi4py/" in path for path in plain.modules)
    assert (plain.gpus_given, plain.no_core) == (False, "this machine has no C++ compiler")
    gpu = Gpu(vendor="nvidia", options={"apptainer": ("--nv",)})
    shape = Shape(ranks=2, gpus=1)
    assert facts(Request(ranks=2, shape=shape), gpu=gpu).gpus_given
    assert not facts(Request(ranks=2), gpu=gpu).gpus_given
    assert not facts(
        Request(ranks=2, shape=shape)
    ).gpus_given  # nothing shows them to the container
    assert facts(Request(ranks=2, shape=shape, engine_args=("--nv",))).gpus_given
    origin = {"comm.backend": Origin(Status.DOCUMENTED, "its manual", "", "s")}
    wish = facts(
        Request(ranks=2),
        here=Here(plugin=("/p/2", "/p/1")),
        comm=Gradients("dl_comm", ("/p/*",)),
        origins=origin,
    )
    assert (wish.wish, wish.wish_by, wish.plugin) == ("dl_comm", "documented: its manual", "/p/2")


@pytest.mark.parametrize(
    "word", ["--nv", "--rocm", "--gpus=all", "--gpu", "--device=nvidia.com/gpu=all"]
)
def test_words_that_show_gpus_to_a_container(word: str) -> None:
    shape = Shape(ranks=2, gpus=1)
    assert facts(Request(ranks=2, shape=shape, engine_args=(word,))).gpus_given
    assert not facts(Request(ranks=2, shape=shape, engine_args=(f"--no-{word[2:]}",))).gpus_given


def test_asked_for_by_flag_then_env_then_shell() -> None:
    shell = {VARIABLE: "mpi4py"}
    assert asked_for("horovod", {}, shell) == ("horovod", "--comm")
    assert asked_for(None, {VARIABLE: "native"}, shell) == ("native", f"--env {VARIABLE}")
    assert asked_for(None, {}, shell) == ("mpi4py", f"${VARIABLE}")
    assert asked_for(None, {}, {}) == ("", "")
    for wrong in (
        (("horovd"), {}, {}),
        (None, {VARIABLE: "x"}, {}),
        ("native", {VARIABLE: "mpi4py"}, {}),
    ):
        with pytest.raises(FairleadError) as caught:
            asked_for(*wrong)
        assert caught.value.code is ExitCode.USAGE
        assert caught.value.findings[0].check == "comm-backend"


def profile(folder: Path, text: str) -> Path:
    path = folder / "own.toml"
    path.write_text(
        '[site]\nname = "own"\nsummary = "x"\nextends = "laptop"\n[comm]\nsource = "guess"\n' + text
    )
    return path


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ('backend = "horovd"\n', "bad-value"),
        ('plugin = ["relative"]\n', "bad-value"),
        ('plugins = ["/p"]\n', "unknown-key"),
        ('backend = "dl_comm"\n', "missing-key"),
    ],
)
def test_profile_is_checked_at_the_door(tmp_path: Path, text: str, check: str) -> None:
    with pytest.raises(FairleadError) as caught:
        load(profile(tmp_path, text), {})
    assert caught.value.code is ExitCode.USAGE
    assert [f.check for f in caught.value.findings] == [check]


def test_profile_with_a_plugin(tmp_path: Path) -> None:
    text = 'backend = "dl_comm"\nplugin = ["$DL/lib", "/opt/dl/*"]\n'
    site = load(profile(tmp_path, text), {})
    assert site.comm == Gradients("dl_comm", ("$DL/lib", "/opt/dl/*"))
