"""What `fairlead pull` prints; tests/system/test_pull.py pulls."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from fairlead_build.cli.pull import pull
from fairlead_build.distribution import pull as pulling
from fairlead_build.distribution.pull import PullResult

REFERENCE = "docker://registry.example.org/ml/mpi-base:1"


@pytest.mark.parametrize(
    ("cached", "shown"), [(True, "a SIF made of its layers, here"), (False, "1.2 MB to transfer")]
)
def test_dry_run_says_what_would_be_transferred(
    cached: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = PullResult(REFERENCE, "sha256:00", None, cached, "layers", 1_234_567, None)
    monkeypatch.setattr(pulling, "pull", lambda *_, **__: result)
    done = CliRunner().invoke(pull, [REFERENCE, "--dry-run"])
    assert done.exit_code == 0 and shown in done.stdout
