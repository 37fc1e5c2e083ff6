"""Tokens of clients: only digests are kept."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fairlead.base.errors import FairleadError
from fairlead.serve import tokens


def test_token_is_its_clients_until_it_is_revoked(tmp_path: Path) -> None:
    _, alice = tokens.new(tmp_path, "alice", submits=True, days=1)
    _, bob = tokens.new(tmp_path, "bob", submits=False, days=0)
    for text, name, submits in ((alice, "alice", True), (bob, "bob", False)):
        found = tokens.find(tmp_path, text)
        assert found is not None and (found.name, found.submits) == (name, submits)
    for wrong in ("", alice[:-1], alice + "x", alice.upper(), "fairlead_", "\udcff"):
        assert tokens.find(tmp_path, wrong) is None
    kept = (tmp_path / tokens.FILE).read_text()
    assert alice.removeprefix("fairlead_") not in kept and bob.removeprefix("fairlead_") not in kept
    assert stat.S_IMODE((tmp_path / tokens.FILE).stat().st_mode) == 0o600
    tokens.remove(tmp_path, "alice")
    assert tokens.find(tmp_path, alice) is None and tokens.find(tmp_path, bob) is not None


def test_token_expires(tmp_path: Path) -> None:
    _, text = tokens.new(tmp_path, "alice", submits=True, days=-1 / 86400)
    assert tokens.find(tmp_path, text) is None
    assert [t.valid for t in tokens.read(tmp_path)] == [False]


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "a\n", "x" * 65])
def test_name_of_a_client_is_a_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(FairleadError, match="invalid name of a client"):
        tokens.new(tmp_path, name, submits=True, days=1)


def test_name_is_given_once_and_removed_once(tmp_path: Path) -> None:
    tokens.new(tmp_path, "alice", submits=True, days=1)
    with pytest.raises(FairleadError, match="there is a token of alice already"):
        tokens.new(tmp_path, "alice", submits=False, days=1)
    tokens.remove(tmp_path, "alice")
    with pytest.raises(FairleadError, match="there is no token of alice"):
        tokens.remove(tmp_path, "alice")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"tokens": [{"name": 1}]}', '{"tokens": 1}', "\0"]
)
def test_damaged_file_lets_nobody_in(tmp_path: Path, text: str) -> None:
    (tmp_path / tokens.FILE).write_text(text)
    with pytest.raises(FairleadError, match="the file of tokens is damaged"):
        tokens.find(tmp_path, "x")
