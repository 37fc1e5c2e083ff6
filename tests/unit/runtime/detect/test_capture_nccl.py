"""A capture has the machine's network plugins, and nothing of its user."""

from __future__ import annotations

from pathlib import Path

from tests.support.nccl import plugin

from fairlead.detect import capture


def test_capture_has_the_plugins_and_no_word_of_the_user(tmp_path: Path) -> None:
    path = plugin(tmp_path / "lib/libnccl-net.so", release="1.18.0")
    (tmp_path / ".nccl.conf").write_text("NCCL_DEBUG=SECRET\n")
    environ = {
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "PATH": "/usr/bin:/bin",
        "NCCL_NET_PLUGIN": str(path),
    }
    taken = capture.take("laptop", (), environ)
    assert taken.nccl
    assert taken.nccl.networks[0].plugin.release == "1.18.0"
    assert not taken.nccl.networks[0].named and not taken.nccl.user_conf
    capture.write(taken, tmp_path / "here.json")
    assert "SECRET" not in (tmp_path / "here.json").read_text()
    assert capture.read(tmp_path / "here.json").nccl == taken.nccl
