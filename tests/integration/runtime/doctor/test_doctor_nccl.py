"""The network plugin of this machine, driven."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.compiled import compiled

from fairlead.base.errors import Severity
from fairlead.doctor.world import World

SOURCE = Path(__file__).parents[3] / "support/net_plugin.c"


@pytest.mark.parametrize(("fault", "what"), [((), ""), (("-DFAULT_INIT",), "did not initialise")])
def test_plugin_of_this_machine_is_really_driven(tmp_path: Path, fault, what: str) -> None:
    code = SOURCE.read_text()
    compiled(tmp_path / "libnccl-net.so", code, "-O2", "-DVERSION=8", *fault)
    machine = World(
        {"LD_LIBRARY_PATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    )
    [network] = machine.net_plugins().networks
    driven = machine.drive_plugin(network)
    if what:
        [finding] = driven.findings
        assert what in finding.what and finding.severity is Severity.ERROR
    else:
        assert driven.findings == () and "0.07 GB moved" in driven.line
