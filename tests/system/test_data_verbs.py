"""``fairlead data`` with a real store: publish, describe, verify, sync both ways, share, and the node's cache."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.object_stores import (
    GUEST,
    OWNER,
    LoopbackStore,
    another,
    faulty,
    installed,
    swift,
)
from tests.system import hosts
from tests.system.hosts import answer, fairlead


@pytest.fixture(scope="module")
def store() -> Iterator[LoopbackStore]:
    with swift() as running:
        running.make_bucket("lab")
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    top = tmp_path / "notes"
    (top / "deep").mkdir(parents=True)
    for n in range(6):
        (top / "deep" / f"{n}.txt").write_text(f"note {n}")
    return top


def data(store: LoopbackStore, *words: str | Path, state: Path | None = None, **more: str):
    environ = store.environ(**more)
    environ |= {"XDG_STATE_HOME": str(state)} if state else {}
    return fairlead("data", *words, env=environ)


def test_set_is_packed_published_described_and_verified(store, folder, tmp_path) -> None:
    done = data(store, "pack", folder, tmp_path / "shards", "--shard-size", "10kB")
    assert done.returncode == 0, done.stderr
    up = data(store, "sync", tmp_path / "shards", "s3://lab/packed", state=tmp_path)
    assert up.returncode == 0, up.stderr
    here = answer(data(store, "describe", "--json", tmp_path / "shards"))
    there = answer(data(store, "describe", "--json", "s3://lab/packed"))
    assert here["digest"] == there["digest"] and there["rows"] == 6 and there["files"] == 1
    listed = answer(data(store, "list", "--json", "s3://lab"))["sets"]
    (one,) = [each for each in listed if each["place"] == "s3://lab/packed"]
    assert one["digest"] == here["digest"]
    right = data(store, "verify", "s3://lab/packed")
    assert right.returncode == 0 and here["digest"] in right.stdout, right.stderr
    shard = store.get("lab", "packed/data-000000.tar")
    store.put("lab", {"packed/data-000000.tar": bytes([shard[0] ^ 1]) + shard[1:]})
    wrong = data(store, "verify", "--json", "s3://lab/packed")
    assert wrong.returncode == 1 and answer(wrong)["wrong"] == ["data-000000.tar"]


def test_list_is_written_for_what_others_have_uploaded(store) -> None:
    store.put("lab", {f"raw/{n}": os.urandom(1000) for n in range(3)})
    without = data(store, "verify", "s3://lab/raw")
    assert without.returncode == 2 and "data describe --write s3://lab/raw" in without.stderr
    written = data(store, "describe", "--write", "s3://lab/raw")
    assert written.returncode == 0, written.stderr
    assert data(store, "verify", "s3://lab/raw").returncode == 0


# What AWS' own library does in a program: parts, in threads of its own.
_BOTO3 = """
import boto3, pathlib, sys
way, top, bucket, prefix = sys.argv[1:]
client, top = boto3.client("s3", region_name="us-east-1"), pathlib.Path(top)
if way == "up":
    for path in filter(pathlib.Path.is_file, top.rglob("*")):
        client.upload_file(str(path), bucket, f"{prefix}/{path.relative_to(top)}")
else:
    for each in client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/")["Contents"]:
        path = top / each["Key"].removeprefix(f"{prefix}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        client.download_file(bucket, each["Key"], str(path))
"""


@pytest.mark.full
@pytest.mark.parametrize("kind", ["aws", "boto3"])
def test_aws_own_clients_and_fairlead_read_what_the_other_wrote(kind, store, tmp_path) -> None:
    """They upload in parts and name checksums of their own choice."""

    def client(way: str, top: Path, prefix: str) -> None:
        if kind == "aws":
            pair = [str(top), f"s3://lab/{prefix}"]
            aws = installed("awscli", "awscli==1.46.3") / "bin/aws"
            line = [aws, "s3", "cp", *(pair if way == "up" else pair[::-1]), "--recursive"]
        else:
            python = installed("boto3", "boto3==1.43.117") / "bin/python"
            line = [python, "-c", _BOTO3, way, str(top), "lab", prefix]
        done = subprocess.run(
            line, check=False, env=store.environ(), timeout=100, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    def content(top: Path) -> dict[str, bytes]:
        return {str(f.relative_to(top)): f.read_bytes() for f in top.rglob("*") if f.is_file()}

    (tmp_path / "set/deep").mkdir(parents=True)
    (tmp_path / "set/large").write_bytes(os.urandom(20_000_000))
    (tmp_path / "set/empty").touch()
    (tmp_path / "set/deep/a b+c%20.txt").write_text("named as people name files")
    client("up", tmp_path / "set", f"{kind}/theirs")
    came = data(store, "sync", f"s3://lab/{kind}/theirs", tmp_path / "ours", state=tmp_path)
    assert came.returncode == 0, came.stderr
    went = data(store, "sync", tmp_path / "set", f"s3://lab/{kind}/ours", state=tmp_path)
    assert went.returncode == 0, went.stderr
    client("down", tmp_path / "theirs", f"{kind}/ours")
    wanted = content(tmp_path / "set")
    for side in ("ours", "theirs"):
        got = content(tmp_path / side)
        got.pop("data.json", None)
        assert got == wanted


def test_sync_brings_changes_of_both_sides_and_refuses_conflicts(store, folder, tmp_path) -> None:
    url, state = "s3://lab/notes", tmp_path / "state"

    def sync(*options: str, code: int = 0) -> dict:
        done = data(store, "sync", "--json", *options, folder, url, state=state)
        assert done.returncode == code, done.stdout + done.stderr
        return answer(done)

    first = sync("--both")
    assert len(first["there"]) == 6 and not first["back"]
    assert len(sync("--both")["same"]) == 6
    (folder / "deep/0.txt").write_text("changed here")
    store.put("lab", {"notes/deep/1.txt": b"changed there", "notes/new": b"new there"})
    (folder / "deep/2.txt").unlink()
    dry = sync("--both", "--delete", "--dry-run")
    done = sync("--both", "--delete")
    for said in (dry, done):
        assert said["there"] == ["deep/0.txt"] and said["back"] == ["deep/1.txt", "new"]
        assert said["gone_there"] == ["deep/2.txt"] and not said["gone_here"]
    assert (folder / "deep/1.txt").read_text() == "changed there"
    assert store.get("lab", "notes/deep/0.txt") == b"changed here"
    assert "notes/deep/2.txt" not in store.keys("lab", "notes/")
    (folder / "deep/3.txt").write_text("here")
    store.put("lab", {"notes/deep/3.txt": b"there"})
    (folder / "deep/4.txt").write_text("not to be copied yet")
    (finding,) = sync("--both", code=1)["findings"]
    assert finding["check"] == "data-sync" and "deep/3.txt" in finding["where"]
    assert store.get("lab", "notes/deep/4.txt") == b"note 4"
    sync("--both", "--prefer", "destination")
    assert (folder / "deep/3.txt").read_text() == "there"
    assert store.get("lab", "notes/deep/4.txt") == b"not to be copied yet"
    assert not list(folder.rglob("*.partial"))


def test_interrupted_sync_leaves_no_half_set_and_goes_on(store, folder, tmp_path) -> None:
    with faulty(store) as (through, faults):
        faults.fault = lambda method, path, number: "503" if path.endswith("5.txt") else ""
        stopped = data(through, "sync", folder, "s3://lab/half", state=tmp_path)
        assert stopped.returncode == 123, stopped.stderr
        used = fairlead(
            "run", "--json", "--stage-in", "s3://lab/half", hosts.image(), "--", "true",
            env=through.environ(),
        )  # fmt: skip
        assert [f["check"] for f in answer(used)["findings"]] == ["object-incomplete"]
        faults.fault = lambda method, path, number: ""
        assert data(through, "sync", folder, "s3://lab/half", state=tmp_path).returncode == 0
    assert len(store.keys("lab", "half/")) == 6


def test_two_who_sync_at_once_do_not_mix(store, folder, tmp_path) -> None:
    """The second is refused by name, and the mark stays until the first has ended."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "theirs").write_text("of somebody else")
    with faulty(store) as (through, faults):
        faults.fault = lambda method, path, number: (
            "hold" if method == "PUT" and path.endswith("5.txt") else ""
        )
        words = [sys.executable, "-m", "fairlead", "data", "sync"]
        environ = through.environ() | {
            "XDG_STATE_HOME": str(tmp_path),
            "FAIRLEAD_OBJECT_WAIT": "60",
        }
        first = subprocess.Popen([*words, folder, "s3://lab/both"], env=environ)
        assert faults.held.wait(60)
        second = data(through, "sync", "--json", other, "s3://lab/both", state=tmp_path)
        again = data(through, "sync", "--json", folder, "s3://lab/both", state=tmp_path)
        down = data(through, "sync", "--json", "s3://lab/both", tmp_path / "down", state=tmp_path)
        for done, check in (
            (second, "object-incomplete"),
            (again, "data-sync"),
            (down, "object-incomplete"),
        ):
            assert done.returncode == 2, done.stdout + done.stderr
            (finding,) = answer(done)["findings"]
            assert finding["check"] == check and finding["remedy"]
        assert socket.gethostname() in answer(second)["findings"][0]["why"]
        assert "both/.fairlead-incomplete" in store.keys("lab", "both/")
        faults.fault = lambda method, path, number: ""
        faults.released.set()
        assert first.wait(100) == 0
        assert data(through, "sync", other, "s3://lab/both", state=tmp_path).returncode == 0
    assert len(store.keys("lab", "both/")) == 7


@pytest.mark.parametrize("way", ["up", "down", "gone"])
def test_change_of_somebody_else_during_a_sync_is_not_lost(way, store, folder, tmp_path) -> None:
    url, name = f"s3://lab/during-{way}", "deep/3.txt"
    key = f"during-{way}/{name}"

    def sync(through: LoopbackStore) -> subprocess.CompletedProcess[str]:
        return data(through, "sync", "--json", "--both", folder, url, state=tmp_path)

    with faulty(store) as (through, faults):
        assert sync(through).returncode == 0
        if way == "up":
            (folder / name).write_text("mine")
        else:
            store.put("lab", {key: b"theirs"})
        did: list[str] = []

        def change(method: str, path: str, number: int) -> str:
            if way == "up" and method == "PUT" and path.endswith(".fairlead-incomplete"):
                store.put("lab", {key: b"theirs"})
            elif way == "down" and method == "GET" and "3.txt" in path:
                (folder / name).write_text("mine, too")
            elif way == "gone" and method == "GET" and "list-type" in path:
                did.append(path)
                if len(did) == 2:  # it is listed again before it is read
                    store.delete("lab", key)
            return ""

        faults.fault = change
        done = sync(through)
    assert done.returncode in (1, 123), done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == ("object-changed" if way == "gone" else "data-sync")
    assert name in finding["where"] + finding["why"]
    if way == "up":
        assert store.get("lab", key) == b"theirs" and (folder / name).read_text() == "mine"
    if way == "down":
        assert (folder / name).read_text() == "mine, too"
    assert not list(folder.glob(".fairlead-sync.*[0-9].partial"))


@pytest.mark.parametrize("way", ["new", "removed", "mark"])
def test_writer_of_the_same_moment_is_not_overwritten(way, store, folder, tmp_path) -> None:
    """Somebody writes after a sync has looked at an object, as its own request is on the way."""
    prefix, name = f"moment-{way}", "deep/3.txt"
    url, key = f"s3://lab/{prefix}", f"{prefix}/{name}"

    def sync(through: LoopbackStore) -> subprocess.CompletedProcess[str]:
        words = ("sync", "--json", "--delete", folder, url)
        return data(through, *words, state=tmp_path)

    with faulty(store) as (through, faults):
        if way == "removed":
            assert sync(through).returncode == 0
            (folder / name).unlink()
        at = {"new": ("PUT", name), "removed": ("DELETE", name), "mark": ("PUT", "incomplete")}[way]
        wrote: list[str] = []

        def write(method: str, path: str, number: int) -> str:
            if method == at[0] and path.endswith(at[1]) and not wrote:
                wrote.append(path)
                theirs = f"{prefix}/.fairlead-incomplete" if way == "mark" else key
                store.put("lab", {theirs: b"theirs"})
            return ""

        faults.fault = write
        done = sync(through)
    assert wrote and done.returncode in (1, 2), done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == ("object-incomplete" if way == "mark" else "data-sync")
    if way == "mark":
        assert store.keys("lab", f"{prefix}/") == [f"{prefix}/.fairlead-incomplete"]
        assert "theirs" in finding["why"]
    else:
        assert name in finding["why"] and store.get("lab", key) == b"theirs"


@pytest.mark.full  # moto is installed
@pytest.mark.parametrize("size", [10, 20_000_000])
def test_writer_of_the_same_moment_keeps_what_it_replaced(size, folder, tmp_path) -> None:
    """Objects that are replaced, and those in parts: of the stores that are tested, moto alone has conditions for them."""
    name, method_of_last = "deep/3.txt", "PUT" if size < 100 else "POST"
    with another("moto", tmp_path / "store") as other, faulty(other) as (through, faults):
        other.make_bucket("lab")
        if (
            size < 100
        ):  # moto has no condition for the last request of an object in parts that replaces one
            done = data(through, "sync", folder, "s3://lab/set", state=tmp_path)
            assert done.returncode == 0, done.stderr
        (folder / name).write_bytes(os.urandom(size))
        wrote: list[str] = []

        def write(method: str, path: str, number: int) -> str:
            is_last = method == method_of_last and not path.endswith("?uploads")
            if name in path and is_last and not wrote:
                wrote.append(path)
                other.put("lab", {f"set/{name}": b"theirs"})
            return ""

        faults.fault = write
        done = data(through, "sync", "--json", folder, "s3://lab/set", state=tmp_path)
        assert wrote and done.returncode == 1, done.stdout + done.stderr
        (finding,) = answer(done)["findings"]
        assert finding["check"] == "data-sync" and name in finding["why"]
        assert other.get("lab", f"set/{name}") == b"theirs"


def test_answer_to_a_conditional_write_may_be_lost(store, folder, tmp_path) -> None:
    """The request is sent again, and the store then says that something is there: it is the file itself."""
    with faulty(store) as (through, faults):
        sent: list[str] = []

        def lose(method: str, path: str, number: int) -> str:
            if method == "PUT" and path.endswith(".txt") and path not in sent:
                sent.append(path)
                return "lost"
            return ""

        faults.fault = lose
        done = data(through, "sync", folder, "s3://lab/lost", state=tmp_path)
        assert len(sent) == 6 and done.returncode == 0, done.stderr
    assert len(store.keys("lab", "lost/")) == 6


@pytest.mark.parametrize("way", ["replaced", "new", "removed"])
def test_file_that_changes_as_a_sync_takes_its_place_is_kept(way, store, folder, tmp_path) -> None:
    """A sync stands still in the system call that gives a file its name, or takes it away."""
    url, target = f"s3://lab/place-{way}", folder / "deep/new"
    key = f"place-{way}/deep/new"
    if way != "new":
        target.write_text("old")
    words = ("sync", "--json", "--both", "--delete", folder, url)
    assert data(store, *words, state=tmp_path).returncode == 0
    if way == "removed":
        store.delete("lab", key)
    else:
        store.put("lab", {key: b"of the store"})
    log = tmp_path / "strace"
    calls = "rename,renameat,renameat2,unlink,unlinkat,link,linkat"
    held = ("strace", "-f", "-qq", "-o", log, "-P", target, "-e", f"trace={calls}", "-e", f"inject={calls}:delay_enter=3000000")  # fmt: skip
    environ = store.environ() | {"XDG_STATE_HOME": str(tmp_path)}
    line = [*map(str, (*held, sys.executable, "-m", "fairlead", "data", *words))]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environ) as running:
        deadline = time.monotonic() + 60
        while not (log.exists() and log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        written = folder / "deep/written"  # as editors and fairlead do
        written.write_text("of somebody else")
        written.replace(target)
        text, _ = running.communicate(timeout=60)
    (finding,) = json.loads(text)["findings"]
    assert running.returncode == 1 and finding["check"] == "data-sync"
    assert "deep/new" in finding["why"]
    assert target.read_text() == "of somebody else", log.read_text()
    assert not list(folder.rglob("*.file.partial"))


def test_each_object_is_one_request(store, tmp_path) -> None:
    """What is on one side alone is neither compared nor read before it travels, also where another client wrote it."""
    count = 60
    (tmp_path / "set").mkdir()
    for n in range(count):
        (tmp_path / "set" / f"{n}").write_text(f"content {n}")
    with faulty(store) as (through, faults):

        def requests(*words: str | Path) -> list[str]:
            faults.requests.clear()
            done = data(through, "sync", *words, state=tmp_path)
            assert done.returncode == 0, done.stderr
            return [
                each for each in faults.requests if "/each/" in each and "incomplete" not in each
            ]

        up = requests(tmp_path / "set", "s3://lab/each")
        assert len(up) == count and {each.split()[0] for each in up} == {"PUT"}
        assert requests(tmp_path / "set", "s3://lab/each") == []
        store.put("lab", {f"each/others {n}": b"of another client" for n in range(10)})
        down = requests("s3://lab/each", tmp_path / "down")
        assert len(down) == count + 10 and {each.split()[0] for each in down} == {"GET"}
        assert requests("s3://lab/each", tmp_path / "down") == []
        (tmp_path / "down/others 3").write_text("changed")
        back = requests("--both", "s3://lab/each", tmp_path / "down")
        assert {each.partition("/")[2] for each in back} == {"lab/each/others%203"}
        assert store.get("lab", "each/others 3") == b"changed"
    assert (tmp_path / "down/7").read_text() == "content 7"


def test_dry_run_makes_no_folder(store, folder, tmp_path) -> None:
    assert data(store, "sync", folder, "s3://lab/dry", state=tmp_path).returncode == 0
    places = tmp_path / "new/place", tmp_path / "other"
    dry = answer(
        data(store, "sync", "--json", "--dry-run", "s3://lab/dry", places[0], state=tmp_path)
    )
    assert len(dry["there"]) == 6
    both = data(store, "sync", "--both", "--dry-run", places[1], "s3://lab/dry", state=tmp_path)
    assert both.returncode == 0 and "copy to source: deep/5.txt" in both.stdout, both.stderr
    assert not places[0].parent.exists() and not places[1].exists()
    (tmp_path / "file").write_text("no folder")
    wrong = data(store, "sync", "--json", "s3://lab/dry", tmp_path / "file", state=tmp_path)
    (finding,) = answer(wrong)["findings"]
    assert wrong.returncode == 2 and finding["check"] == "data-place"


def test_sync_with_another_store_of_the_same_url_removes_nothing(store, folder, tmp_path) -> None:
    url = "s3://lab/same-url"
    assert data(store, "sync", "--both", "--delete", folder, url, state=tmp_path).returncode == 0
    with another("rclone", tmp_path / "store") as other:
        other.make_bucket("lab")
        done = data(other, "sync", "--both", "--delete", folder, url, state=tmp_path)
        assert done.returncode == 0, done.stderr
        assert len(other.keys("lab", "same-url/")) == 6
    assert len(list((folder / "deep").iterdir())) == 6


def test_files_of_any_name_are_synced_and_what_is_no_file_is_named(store, tmp_path) -> None:
    top = tmp_path / "names"
    top.mkdir()
    for name in ("model.partial", "new\nline", " blank ", "-rf", "%41", "a+b&c", "\x1b[31m"):
        (top / name).write_text(name)
    (top / "folder").mkdir()
    (top / "link").symlink_to("folder")
    (top / "broken").symlink_to("nothing")
    done = data(store, "sync", "--json", top, "s3://lab/names", state=tmp_path)
    assert done.returncode == 0, done.stderr
    assert answer(done)["left_out"] == ["broken", "link"] and len(answer(done)["there"]) == 7
    back = data(store, "sync", "s3://lab/names", tmp_path / "back", state=tmp_path)
    assert back.returncode == 0, back.stderr
    for path in (tmp_path / "back").iterdir():
        assert path.read_text() == path.name
    single = data(store, "sync", "s3://lab/names/a+b&c", tmp_path / "one", state=tmp_path)
    assert single.returncode == 0, single.stderr
    assert [p.read_text() for p in (tmp_path / "one").iterdir()] == ["a+b&c"]
    Path(os.fsdecode(bytes(top) + b"/\xff")).touch()
    refused = data(store, "sync", "--json", top, "s3://lab/names", state=tmp_path)
    assert refused.returncode == 121, refused.stderr
    assert [f["check"] for f in answer(refused)["findings"]] == ["object-names"]


def test_links_work_for_others_until_they_expire(store, tmp_path) -> None:
    store.put("lab", {"shared/a": b"content of a", "shared/b": b"b"})
    links = tmp_path / "links"
    done = data(store, "share", "s3://lab/shared", "--for", "1h", "-o", links)
    assert done.returncode == 0, done.stderr
    first, second = links.read_text().split()
    assert links.stat().st_mode & 0o777 == 0o600 and OWNER[1] not in first + second
    with urllib.request.urlopen(first, timeout=10) as answered:
        assert answered.read() == b"content of a"
    expired = fairlead(
        "data", "share", "s3://lab/shared/a", "--for", "1m", "--json",
        env=store.environ() | {"LD_PRELOAD": str(_faketime()), "FAKETIME": "-10m"},
    )  # fmt: skip
    (link,) = json.loads(expired.stdout)["links"].values()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(link, timeout=10)
    assert caught.value.code == 403
    too_long = data(store, "share", "s3://lab/shared", "--for", "30d")
    assert too_long.returncode == 2 and "7 days" in too_long.stderr


def _faketime() -> Path:
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


def test_store_without_policies_says_so(store) -> None:
    done = data(store, "share", "s3://lab/shared", "--with", "someone", "--json")
    assert done.returncode == 2, done.stderr
    assert [f["check"] for f in answer(done)["findings"]] == ["object-unsupported"]


@pytest.mark.full  # moto is installed
def test_policies_of_prefixes_whose_names_are_alike_stay_apart(tmp_path) -> None:
    """Those who may read `hep` by the policy do so until `hep` is revoked, whatever happens to its neighbours."""
    with another("moto", tmp_path / "store") as other:
        other.make_bucket("lab")

        def share(place: str, *words: str) -> None:
            done = data(other, "share", place, *words)
            assert done.returncode == 0, done.stderr

        def readers() -> dict[str, list[str]]:
            import botocore.exceptions

            try:
                statements = json.loads(other.policy("lab"))["Statement"]
            except botocore.exceptions.ClientError:
                return {}
            assert len({each["Sid"] for each in statements}) == len(statements)
            return {
                each["Resource"][0].removeprefix("arn:aws:s3:::lab/"): each["Principal"]["AWS"]
                for each in statements
                if each["Action"] == ["s3:GetObject"]
            }

        amy, bob = "arn:aws:iam::123456789012:user/amy", "arn:aws:iam::123456789012:user/bob"
        places = ("hep", "hep2", "a/b", "a-b")
        for place in places:
            share(f"s3://lab/{place}", "--with", amy)
        share("s3://lab", "--with", amy)
        wanted = {"*": [amy], **{f"{place}/*": [amy] for place in places}}
        assert readers() == wanted
        share("s3://lab/hep/", "--with", bob)
        assert readers() == {**wanted, "hep/*": [amy, bob]}
        share("s3://lab", "--revoke")
        share("s3://lab/hep", "--revoke")
        share("s3://lab/a/b", "--revoke")
        assert readers() == {"hep2/*": [amy], "a-b/*": [amy]}
        share("s3://lab/hep2", "--revoke")
        share("s3://lab/a-b", "--revoke")
        assert readers() == {}


def test_cache_is_shown_and_shrunk(store, tmp_path) -> None:
    store.put("lab", {"set/a": os.urandom(3_000_000), "set/b": os.urandom(1_000_000)})
    done = fairlead(
        "run", "--stage-to", tmp_path, "--stage-cache", "1GB", "--stage-in", "s3://lab/set",
        hosts.image(), "--", "true", env=store.environ(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kept = answer(data(store, "cache", "--in", tmp_path, "--json"))
    assert sorted(one["bytes"] for one in kept["files"]) == [1_000_000, 3_000_000]
    data(store, "cache", "--in", tmp_path, "--limit", "3.5MB")
    left = answer(data(store, "cache", "--in", tmp_path, "--json"))
    assert sum(one["bytes"] for one in left["files"]) <= 3_500_000
    data(store, "cache", "--in", tmp_path, "--clear")
    assert not list(tmp_path.glob("fairlead-cache.*"))


@pytest.mark.parametrize(
    ("words", "check"),
    [
        (("list", "s3://no-such-bucket"), "object-missing"),
        (("describe", "s3://lab/nothing"), "data-place"),
        (("describe", "/no/such/folder"), "data-place"),
        (("sync", "/tmp", "/tmp"), "data-sync"),
        (("sync", "s3://lab/nothing", "s3://lab/elsewhere"), "data-place"),
        (("share", "/tmp"), "object-url"),
        (("share", "s3://lab/nothing"), "data-place"),
    ],
)
def test_wrong_words_are_one_message_with_a_remedy(words, check, store) -> None:
    done = data(store, words[0], "--json", *words[1:])
    assert done.returncode == 2, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == check and finding["remedy"]


def test_guest_is_refused_by_name(store) -> None:
    done = data(store, "list", "--json", "s3://lab", key=GUEST[0], secret=GUEST[1])
    assert done.returncode == 2
    assert [f["check"] for f in answer(done)["findings"]] == ["object-denied"]
