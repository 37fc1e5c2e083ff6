"""What came of a source, in the cache."""

from __future__ import annotations

from pathlib import Path

from fairlead_build.tree.sources import _keep


def test_result_that_another_build_kept_meanwhile_stays(tmp_path: Path) -> None:
    final = tmp_path / "sources" / "key"
    final.parent.mkdir()
    for number in ("0", "1"):
        made = tmp_path / f"made-{number}"
        made.mkdir()
        (made / "build.log").write_text(number)
        _keep(made, tmp_path / f"staging-{number}", final)
    assert (final / "build.log").read_text() == "0"
