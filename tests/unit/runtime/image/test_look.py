"""Looking into images: what lies in the folder one stands in has no say."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.base.errors import FairleadError
from fairlead.image.mount import look


def test_look_in_a_folder_with_modules_of_its_own_ignores_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("open('ran', 'w')\nraise SystemExit('mine')\n")
    (tmp_path / "image.squashfs").write_bytes(b"hsqs" + bytes(4096))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FairleadError) as caught:
        look(tmp_path / "image.squashfs", 0)
    assert "mine" not in caught.value.findings[0].why
    assert not (tmp_path / "ran").exists()
