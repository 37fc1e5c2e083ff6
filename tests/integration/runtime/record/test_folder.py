"""Records on disk: what is written, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.run_records import proof_of, run_record, without_sources, written
from tests.support.signed import PASSPHRASE, kept_key

from fairlead.base.errors import FairleadError
from fairlead.image import keys
from fairlead.record import folder
from fairlead.record.crate import CRATE
from fairlead.record.gather import ranks_of
from fairlead.record.model import RunRecord, ranges
from fairlead.record.statement import ENVELOPE, SSH_SIGNATURE, STATEMENT

RECORD = run_record(**{"out.npy": "67" * 32, "model": "89" * 32})


@pytest.fixture(scope="module")
def key() -> keys.PrivateKey:
    return keys.open_private(kept_key(), lambda: PASSPHRASE)


def _trusted(key: keys.PrivateKey) -> dict[str, keys.PublicKey]:
    return {key.public.id: key.public}


@pytest.mark.parametrize("record", [RECORD, run_record(3), without_sources(RECORD)])
def test_record_that_is_written_is_read_again(tmp_path: Path, record: RunRecord) -> None:
    opened = folder.read(written(tmp_path / "run", record), {})
    assert opened.record == record and opened.key == ""


def test_name_that_is_no_text_is_written_and_read(tmp_path: Path) -> None:
    record = run_record(**{os.fsdecode(b"out\xff"): "67" * 32})
    opened = folder.read(written(tmp_path / "run", record), {})
    assert opened.record.results[0].name == "out?"


def test_statement_holds_the_digests_of_all_other_files_and_of_results(tmp_path: Path) -> None:
    path = written(tmp_path / "run", RECORD)
    statement = json.loads((path / "statement.json").read_bytes())
    subjects = {s["name"]: s["digest"] for s in statement["subject"]}
    for file in path.iterdir():
        if file.name != "statement.json":
            assert subjects.pop(file.name) == {
                "sha256": hashlib.sha256(file.read_bytes()).hexdigest()
            }
    assert subjects == {"out.npy": {"sha256": "67" * 32}, "model": {"sha256": "89" * 32}}
    build = statement["predicate"]["buildDefinition"]
    names = [dependency["name"] for dependency in build["resolvedDependencies"]]
    assert names == [
        "image",
        "lock",
        "sbom",
        "code",
        "train.py",
        "in.h5",
        "shards",
        RECORD.before.mpi.file,
    ]


def test_every_file_of_a_signed_record_is_guarded(tmp_path: Path, key: keys.PrivateKey) -> None:
    path = written(tmp_path / "run", RECORD, key)
    assert folder.read(path, _trusted(key)).key == key.public.id
    for file in sorted(path.iterdir()):
        if file.name == SSH_SIGNATURE:
            continue  # for ssh-keygen
        whole = file.read_bytes()
        for at in range(0, len(whole), max(len(whole) // 40, 1)):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(FairleadError):
                folder.read(path, _trusted(key))
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(FairleadError):
            folder.read(path, _trusted(key))
        file.write_bytes(whole)
    assert folder.read(path, _trusted(key)).record == RECORD


def test_signature_of_another_key_and_of_another_record_does_not_count(
    tmp_path: Path, key: keys.PrivateKey
) -> None:
    path = written(tmp_path / "run", RECORD, key)
    with pytest.raises(FairleadError, match="a key that is not trusted"):
        folder.read(path, {})
    other = written(tmp_path / "other", run_record(), key)
    shutil.copy(other / ENVELOPE, path / ENVELOPE)
    with pytest.raises(FairleadError, match="damaged"):
        folder.read(path, _trusted(key))
    envelope = json.loads((other / ENVELOPE).read_bytes())
    envelope["payload"] = base64.b64encode((path / STATEMENT).read_bytes()).decode()
    (path / ENVELOPE).write_text(json.dumps(envelope))
    with pytest.raises(FairleadError, match="does not hold"):
        folder.read(path, _trusted(key))


def test_record_is_signed_later_and_only_when_it_is_whole(
    tmp_path: Path, key: keys.PrivateKey
) -> None:
    path = written(tmp_path / "run", RECORD)
    folder.sign(path, key)
    assert folder.read(path, _trusted(key)).key == key.public.id
    (path / "run.json").write_bytes(b"{}")
    with pytest.raises(FairleadError, match="damaged"):
        folder.sign(path, key)


def test_ssh_keygen_verifies_the_statement_and_refuses_a_changed_one(
    tmp_path: Path, key: keys.PrivateKey
) -> None:
    path = written(tmp_path / "run", RECORD, key)
    signers = tmp_path / "signers"
    signers.write_text(f"me@example.org {key.public.line}")
    line = [
        "ssh-keygen", "-Y", "verify", "-f", signers, "-I", "me@example.org", "-n", "fairlead-run-record",
        "-s", path / "statement.json.sig",
    ]  # fmt: skip
    text = (path / "statement.json").read_bytes()
    done = subprocess.run(line, input=text, capture_output=True, check=False)
    assert done.returncode == 0 and b"Good" in done.stdout, done
    done = subprocess.run(line, input=text + b" ", capture_output=True, check=False)
    assert done.returncode != 0


def _edited(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edits run.json as somebody would who makes the statement fit."""
    file, statement = path / "run.json", path / "statement.json"
    document = json.loads(file.read_bytes())
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    edit(document)
    file.write_text(json.dumps(document))
    after = hashlib.sha256(file.read_bytes()).hexdigest()
    statement.write_text(statement.read_text().replace(before, after))


@pytest.mark.parametrize(
    ("edit", "what", "why"),
    [
        (lambda d: d.update(version=2, fairlead="9.9", new=1), "newer fairlead", "written by fairlead 9.9; known is 1"),
        (lambda d: d.update(schema="fairlead/other"), "damaged", "its schema is 'fairlead/other'"),
        (lambda d: d.pop("ranks"), "damaged", "missing 1 required"),
        (lambda d: d["outcome"].update(exit_code="0"), "damaged", "expected int, found str"),
        (lambda d: d["before"].update(image=[]), "damaged", "expected an object, found list"),
        (lambda d: d.update(extra=1), "damaged", "unknown field extra"),
    ],
)  # fmt: skip
def test_record_of_another_shape_is_refused_with_the_reason(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None], what: str, why: str
) -> None:
    path = written(tmp_path / "run", RECORD)
    _edited(path, edit)
    with pytest.raises(FairleadError, match=what) as caught:
        folder.read(path, {})
    assert why in caught.value.findings[0].why


def test_statement_may_not_name_files_elsewhere(tmp_path: Path) -> None:
    path = written(tmp_path / "run", RECORD)
    statement = json.loads((path / "statement.json").read_bytes())
    statement["subject"].append({"name": "../../etc/passwd", "digest": {"sha256": "00" * 32}})
    (path / "statement.json").write_text(json.dumps(statement))
    with pytest.raises(FairleadError) as caught:
        folder.read(path, {})
    assert "is not a file of a record" in caught.value.findings[0].why


def test_missing_record_and_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(FairleadError, match="there is no record run"):
        folder.read(tmp_path / "run", {})
    path = written(tmp_path / "run", RECORD)
    (path / CRATE).unlink()
    with pytest.raises(FairleadError, match="incomplete") as caught:
        folder.read(path, {})
    assert caught.value.findings[0].where.endswith("ro-crate-metadata.json")


def test_folder_is_reserved_by_one_run_and_left_to_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "deep/run"
    with folder.reserved(path):
        with (
            pytest.raises(FairleadError, match="another run writes its record"),
            folder.reserved(path),
        ):
            raise AssertionError
        written(path, RECORD)
    assert [p.name for p in path.parent.iterdir()] == ["run"]
    with pytest.raises(FairleadError, match="already exists"), folder.reserved(path):
        raise AssertionError
    assert [p.name for p in path.parent.iterdir()] == ["run"]


@pytest.mark.parametrize("there", ["file", "folder", "link", "damaged"])
def test_what_is_there_is_never_replaced(tmp_path: Path, there: str) -> None:
    path = tmp_path / "run"
    if there == "file":
        path.write_text("mine")
    elif there == "link":
        path.symlink_to("nowhere")
    else:
        path.mkdir()
        (path / ("run.json" if there == "damaged" else "mine")).write_text("{")
    with pytest.raises(FairleadError, match="already exists"), folder.reserved(path):
        raise AssertionError
    with pytest.raises(FairleadError, match="already exists"):
        written(path, RECORD)
    assert os.path.lexists(path)


def test_record_of_a_failed_run_and_an_empty_folder_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    written(path, run_record(3))
    with folder.reserved(path):
        written(path, RECORD)
    assert folder.read(path, {}).record == RECORD


def test_record_that_a_killed_run_was_writing_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / ".run.recording").touch()
    (tmp_path / ".run.abcdefgh.partial/new").mkdir(parents=True)
    with folder.reserved(tmp_path / "run"):
        written(tmp_path / "run", RECORD)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


class _Plan:
    """Of a plan, what names the libraries of ranks."""

    staging = nccl_staging = carried_staging = host = None
    bound = binds = ()
    request = type("Request", (), {"binds": ()})


@pytest.mark.parametrize("own", [0, 1, 400])
def test_record_of_a_thousand_ranks_stays_below_200_kb(tmp_path: Path, own: int) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    every = [f"/opt/python/lib/python3.11/site-packages/package{i}/_module{i}.cpython-311-x86_64-linux-gnu.so" for i in range(500)]  # fmt: skip
    for rank in range(1000):
        mine = [*every, *(f"/tmp/rank-{rank}/compiled-{i:08}.so" for i in range(own))]
        (notes / f"maps.{rank}").write_text(f"{len(mine)} {rank if own else 0:x}\n")
        if own or not rank:
            (notes / f"code.{rank:x}").write_text(
                "\n".join(mine[: len(every) + min(own, 20)]) + "\n"
            )
    ranks = ranks_of(_Plan, 1000, proof_of(1000), notes, tmp_path)
    assert [library.path for library in ranks.libraries] == sorted(every)
    assert (ranks.groups[0].ranks, ranks.hosts["nid000124"]) == ("0-999", "992-999")
    assert len(ranks.others) == (64 if own else 0) and ranks.unlisted == ("64-999" if own else "")
    path = written(tmp_path / "run", replace(RECORD, ranks=ranks))
    assert (
        sum(file.stat().st_size for file in path.iterdir()) < 200_000 - 30_000
    )  # a large image's lock and materials


def test_rank_that_maps_other_files_is_named(tmp_path: Path) -> None:
    for rank, files in enumerate(["/a /b", "/a /b", "/a /c", "/b /a"]):
        (tmp_path / f"maps.{rank}").write_text(f"2 {rank:x}\n")
        (tmp_path / f"code.{rank:x}").write_text(files.replace(" ", "\n") + "\n")
    (tmp_path / "maps.9").write_text("damaged")
    ranks = ranks_of(_Plan, 4, None, tmp_path, tmp_path)
    assert [library.path for library in ranks.libraries] == ["/a", "/b"]
    (other,) = ranks.others
    assert (other.ranks, other.also, other.without) == ("2", ("/c",), ("/b",))
    assert ranges([5, 1, 2]) == "1-2,5"
