"""Faults that the proof over the wire names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.compiled import compiled
from tests.unit.runtime.nccl.test_seeded_faults import WIRE

from fairlead.base.errors import Severity
from fairlead.proof.wire import Settings, wire

DRIVEN = Path(__file__).parents[3] / "support/net_plugin.c"


@pytest.mark.parametrize("fault", WIRE)
def test_seeded_fault_is_named_by_the_wire_proof(tmp_path: Path, fault: str) -> None:
    file = compiled(tmp_path / "libnccl-net.so", DRIVEN.read_text(), "-O2", f"-D{fault}")
    done = wire(str(file), Settings(size=4096, count=16, wait_s=1.0, limit_s=2.0))
    assert not done.holds
    [found] = done.findings()
    assert re.search(WIRE[fault], f"{found.what} {found.where} {found.why}"), found
    assert found.severity is Severity.ERROR and found.remedy
