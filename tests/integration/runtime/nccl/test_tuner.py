"""A tuner that is staged for ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.compiled import compiled
from tests.support.nccl import gpu_ask, gpu_plan, plugin
from tests.unit.runtime.nccl.test_tuner import code, looked

from fairlead.swap import staging


def test_staged_tuner_is_really_there(tmp_path: Path) -> None:
    folder = tmp_path / "opt/site/lib"
    plugin(folder / "libnccl-net.so", release="1.14.2")
    compiled(folder / "libnccl-ofi-tuner.so", code((2,), "1.14.2"))
    plan = gpu_plan(asked=gpu_ask(looked(tmp_path)), isolate=False)
    assert plan.nccl_staging
    staging.ensure(replace(plan, staging=None), tmp_path / "cache")
    [made] = (tmp_path / "cache/stage").glob("nccl-*/lib/libnccl-ofi-tuner.so")
    assert made.read_bytes() == (folder / "libnccl-ofi-tuner.so").read_bytes()
