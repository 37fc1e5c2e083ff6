"""``fairlead data share`` with a store that enforces policies, and the other verbs with it: Ceph's gateway, with two users."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.object_stores import GUEST, OWNER, LoopbackStore, radosgw
from tests.system import hosts
from tests.system.hosts import answer, fairlead

pytestmark = pytest.mark.full  # the gateway's packages are 150 MB
GUEST_ARN = "arn:aws:iam:::user/guest"


@pytest.fixture(scope="module")
def store() -> Iterator[LoopbackStore]:
    with radosgw() as running:
        yield running


@pytest.fixture
def bucket(store, tmp_path, request) -> str:
    """With two sets whose names are alike, `hep` and `hep2`."""
    name = f"b{abs(hash(request.node.name)) % 10**12}"
    store.make_bucket(name)
    (tmp_path / "set/deep").mkdir(parents=True)
    for n in range(5):
        (tmp_path / f"set/deep/{n}.txt").write_text(f"note {n}")
    own(store, "describe", "--write", tmp_path / "set")
    for prefix in ("hep", "hep2"):
        own(store, "sync", tmp_path / "set", f"s3://{name}/{prefix}", state=tmp_path)
    return name


def data(
    store: LoopbackStore, user: tuple[str, str], *words: str | Path, state: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environ = store.environ(*user) | ({"XDG_STATE_HOME": str(state)} if state else {})
    return fairlead("data", *words, env=environ)


def own(store: LoopbackStore, *words: str | Path, state: Path | None = None) -> str:
    done = data(store, OWNER, *words, state=state)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_of(store: LoopbackStore, user: tuple[str, str], *words: str | Path) -> str:
    """The finding that a command stops with; empty when it does what it should."""
    done = data(store, user, words[0], "--json", *words[1:])
    if done.returncode == 0:
        return ""
    assert done.stdout, done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["remedy"] and "None" not in finding["why"], finding
    return str(finding["check"])


def status(url: str) -> int:
    """Of a request without credentials."""
    try:
        with urllib.request.urlopen(url, timeout=20) as answered:
            return int(answered.status)
    except urllib.error.HTTPError as exc:
        return exc.code


def test_policy_lets_a_user_read_one_prefix_until_it_is_revoked(store, bucket, tmp_path) -> None:
    hep, hep2 = f"s3://{bucket}/hep", f"s3://{bucket}/hep2"
    for place in (hep, hep2, f"s3://{bucket}"):
        assert check_of(store, GUEST, "list", place) == "object-denied"
    own(store, "share", hep, "--with", GUEST_ARN)
    for verb in ("list", "describe", "verify"):
        assert check_of(store, GUEST, verb, hep) == "", verb
    down = data(store, GUEST, "sync", hep, tmp_path / "down", state=tmp_path / "guest")
    assert down.returncode == 0, down.stderr
    assert (tmp_path / "down/deep/3.txt").read_text() == "note 3"
    ran = fairlead(
        "run", "--stage-to", tmp_path, "--stage-in", f"{hep}:data", hosts.image(), "--",
        "sh", "-c", "cat $FAIRLEAD_STAGE/data/deep/4.txt", env=store.environ(*GUEST),
    )  # fmt: skip
    assert ran.returncode == 0 and "note 4" in ran.stdout, ran.stderr
    for place in (hep2, f"s3://{bucket}"):
        assert check_of(store, GUEST, "list", place) == "object-denied"
    assert check_of(store, GUEST, "verify", hep2) == "object-denied"

    before = {key: store.get(bucket, key) for key in store.keys(bucket)}
    (tmp_path / "down/new").write_text("of the guest")
    assert check_of(store, GUEST, "sync", tmp_path / "down", hep) == "object-denied"
    assert check_of(store, GUEST, "describe", "--write", hep) == "object-denied"
    out = fairlead(
        "run", "--json", "--stage-to", tmp_path, "--stage-out", f"out:{hep}/out", hosts.image(),
        "--", "true", env=store.environ(*GUEST),
    )  # fmt: skip
    assert [f["check"] for f in answer(out)["findings"]] == ["object-denied"]
    assert {key: store.get(bucket, key) for key in store.keys(bucket)} == before

    own(store, "share", hep2, "--with", GUEST_ARN)
    own(store, "share", hep, "--revoke")
    assert check_of(store, GUEST, "list", hep) == "object-denied"
    assert check_of(store, GUEST, "describe", hep) == "object-denied"
    assert check_of(store, GUEST, "verify", hep2) == "", "the neighbour's policy stays"
    own(store, "share", hep2, "--revoke")
    assert check_of(store, GUEST, "verify", hep2) == "object-denied"


def test_policy_for_everybody_needs_no_credentials(store, bucket) -> None:
    def statuses() -> tuple[int, int]:
        top = f"{store.endpoint}/{bucket}"
        return status(f"{top}/hep/deep/0.txt"), status(f"{top}/hep2/deep/0.txt")

    assert statuses() == (403, 403)
    own(store, "share", f"s3://{bucket}/hep", "--with", "*")
    assert statuses() == (200, 403)
    own(store, "share", f"s3://{bucket}/hep", "--revoke")
    assert statuses() == (403, 403)


def test_link_works_without_credentials_until_it_expires(store, bucket) -> None:
    place = f"s3://{bucket}/hep/deep/0.txt"
    assert status(own(store, "share", place, "--for", "5m").strip()) == 200
    preload = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    late = store.environ() | {"LD_PRELOAD": str(preload), "FAKETIME": "-10m"}
    done = fairlead("data", "share", place, "--for", "5m", "--json", env=late)
    (link,) = json.loads(done.stdout)["links"].values()
    assert status(link) == 403
    assert status(f"{link}0") == 403, "a link whose time was extended by hand"


def test_store_that_refuses_a_policy_is_named_with_the_remedy(store, bucket) -> None:
    place = f"s3://{bucket}/hep"
    for words in (("--with", GUEST_ARN), ("--revoke",)):
        assert check_of(store, GUEST, "share", place, *words) == "object-denied"
    done = data(store, OWNER, "share", place, "--with", "no/such")
    assert done.returncode == 2 and "error[object-policy]" in done.stderr, done.stderr
    assert "arn:aws:iam:::user/NAME" in done.stderr
    assert check_of(store, GUEST, "list", place) == "object-denied"


def test_object_that_the_store_damages_is_noticed(store, bucket, tmp_path) -> None:
    """Of this gateway without a cluster, objects in parts come back wrong, under the right ETag."""
    (tmp_path / "large").mkdir()
    (tmp_path / "large/file").write_bytes(content := os.urandom(40_000_000))
    place = f"s3://{bucket}/large"
    own(store, "sync", tmp_path / "large", place, state=tmp_path)
    if store.get(bucket, "large/file") == content:
        pytest.skip("this version of the store does not damage it")
    assert check_of(store, OWNER, "describe", "--write", place) == "data-list"
    assert f"{place}/data.json" not in store.keys(bucket)
    down = ("sync", place, tmp_path / "down")
    assert check_of(store, OWNER, *down) == "object-checksum"
    assert not (tmp_path / "down/file").exists()
    staged = fairlead(
        "run", "--json", "--stage-to", tmp_path, "--stage-in", place, hosts.image(), "--", "true",
        env=store.environ(),
    )  # fmt: skip
    assert [f["check"] for f in answer(staged)["findings"]] == ["object-checksum"]
    own(store, "describe", "--write", tmp_path / "large")
    own(store, "sync", tmp_path / "large", place, state=tmp_path)
    done = data(store, OWNER, "verify", place)
    assert done.returncode == 1 and "differs: file" in done.stdout
