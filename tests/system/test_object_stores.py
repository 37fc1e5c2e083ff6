"""Bytes to and from a real S3 store: whole, verified, resumed, and what goes wrong by its name."""

from __future__ import annotations

import hashlib
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.object_stores import (
    GUEST,
    OWNER,
    LoopbackStore,
    another,
    cloud,
    faulty,
    killed_in_an_upload,
    swift,
    web,
)
from tests.system import hosts

from fairlead.base import data_list
from fairlead.base.errors import FairleadError
from fairlead.objects.cache import Cache
from fairlead.objects.fetch import Fetched, fetch
from fairlead.objects.model import MARK, PART
from fairlead.objects.registry import open_store
from fairlead.objects.send import Sent, Source, send
from fairlead.objects.survey import survey


@pytest.fixture(scope="module")
def store() -> Iterator[LoopbackStore]:
    with swift() as running:
        yield running


@pytest.fixture
def bucket(store: LoopbackStore, monkeypatch, request) -> str:
    """A bucket of this test, whose environment is that of the store's owner."""
    use(store, monkeypatch)
    name = f"b{abs(hash(request.node.name)) % 10**12}"
    store.make_bucket(name)
    return name


def use(store: LoopbackStore, monkeypatch, key: str = "", secret: str = "") -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in store.variables(key, secret).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FAIRLEAD_OBJECT_WAIT", "2")


def fetched(url: str, target: Path, cache: Path | None = None, limit: int = 0) -> Fetched:
    opened = open_store(url)
    kept = Cache(cache or target.with_name("cache"), limit)
    return fetch(opened, survey(opened), str(target), kept)


def sources(top: Path) -> list[Source]:
    return [
        Source(p.relative_to(top).as_posix(), str(p), p.stat().st_size, p.stat().st_mode)
        for p in sorted(top.rglob("*"))
        if p.is_file()
    ]


def sent(url: str, top: Path) -> Sent:
    return send(open_store(url), sources(top))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small files and a large one, one of them executable."""
    top = tmp_path / "folder"
    (top / "deep" / "er").mkdir(parents=True)
    (top / "large").write_bytes(os.urandom(2 * PART + 12345))
    (top / "empty").touch()
    for n in range(20):
        (top / "deep" / f"f{n} é&?#%").write_bytes(os.urandom(1000 + n))
    (top / "deep" / "er" / "run").write_text("#!/bin/sh\n")
    (top / "deep" / "er" / "run").chmod(0o755)
    return top


def contents(top: Path) -> dict[str, bytes]:
    return {p.relative_to(top).as_posix(): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def stopped(message: str, call, *arguments) -> str:
    """The text of the one finding that ``call`` stops with."""
    with pytest.raises(FairleadError) as caught:
        call(*arguments)
    (finding,) = caught.value.findings
    assert finding.check == message, finding
    text = f"{finding.what} {finding.where} {finding.why} {finding.remedy}"
    assert not [word for word in (OWNER[1], GUEST[1], "wrong-secret") if word in text]
    return text


def test_folder_comes_back_bit_for_bit_with_its_list(bucket, folder, tmp_path, store) -> None:
    there = sent(f"s3://{bucket}/set", folder)
    assert there.moved == sum(map(len, contents(folder).values())) and not there.skipped
    assert MARK not in store.keys(bucket, "set/")
    back = fetched(f"s3://{bucket}/set", tmp_path / "back")
    came = contents(tmp_path / "back")
    assert came.pop(data_list.NAME) == store.get(bucket, f"set/{data_list.NAME}")
    assert came == contents(folder)
    assert back.digest == there.digest and back.unverified == ()
    assert (tmp_path / "back/deep/er/run").stat().st_mode & 0o777 == 0o755
    assert not (tmp_path / "cache").exists()
    # As `sha256sum` and `sort` compute it.
    line = "find * -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum"
    ran = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, check=True)
    assert ran.stdout.split()[0] == there.digest


@pytest.mark.full  # rclone takes a second of a processor for each request
@pytest.mark.parametrize("kind", ["rclone", "moto", "s3rver"])
def test_servers_of_others_take_a_folder_and_give_it_back(
    kind: str, folder: Path, tmp_path: Path, monkeypatch
) -> None:
    """One lists ETags without quotes, one takes no links of version 2, one cannot give an upload up."""
    with another(kind, tmp_path / "store") as other:
        use(other, monkeypatch)
        monkeypatch.setenv("FAIRLEAD_OBJECT_WAIT", "30")
        other.make_bucket("lab")
        url = "s3://lab/set"
        open_store(url).check_writable()
        there = sent(url, folder)
        back = fetched(url, tmp_path / "back")
        came = contents(tmp_path / "back")
        assert came.pop(data_list.NAME) == other.get("lab", f"set/{data_list.NAME}")
        assert came == contents(folder) and back.digest == there.digest
        assert sent(url, folder).skipped == len(contents(folder))
        link = open_store(url).link("large", 60)
        got = subprocess.run(["curl", "-sf", link], check=True, capture_output=True).stdout
        assert got == (folder / "large").read_bytes()
        text = stopped("object-missing", open_store("s3://gone/set").check_writable)
        assert "the bucket `gone` does not exist" in text


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["abfs", "gs"])
def test_clouds_of_azure_and_google_by_their_emulators(
    scheme: str, folder: Path, tmp_path: Path
) -> None:
    with cloud(scheme) as environ:

        def data(*words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
            return hosts.fairlead("data", *words, env={**environ, **more})

        place = f"{scheme}://lab/set"
        odd = [path for path in folder.rglob("*") if "?#" in path.name]
        if scheme == "abfs":  # `?` before `#` is a version to its package: another object
            refused = data("sync", folder, place)
            assert refused.returncode == 121, refused.stderr
            assert "error[object-names]" in refused.stderr and "without `?`" in refused.stderr
            for path in odd:
                path.rename(path.with_name(path.name.replace("?", "")))
        for words in (("sync", folder, place), ("describe", "--write", place), ("verify", place)):
            done = data(*words)
            assert done.returncode == 0, done.stderr
        done = data("sync", place, tmp_path / "back")
        assert done.returncode == 0, done.stderr
        came = contents(tmp_path / "back")
        assert came.pop(data_list.NAME) and came == contents(folder)
        assert "Traceback" not in done.stderr
        gone = data("verify", f"{scheme}://gone/set")
        assert gone.returncode and "error[" in gone.stderr, gone.stderr
        gone = data("list", f"{scheme}://gone/set")
        assert "the bucket `gone` does not exist" in gone.stderr, gone.stderr
        assert len(gone.stderr.splitlines()) < 8, "nothing of its package's log"
        if scheme == "abfs":
            none = {k: v for k, v in environ.items() if not k.startswith("AZURE_")}
            alone = hosts.fairlead("data", "list", place, env=none)
            assert "error[object-credential]: no credentials" in alone.stderr
            assert "AZURE_STORAGE_CONNECTION_STRING" in alone.stderr and "AWS" not in alone.stderr
            text = environ["AZURE_STORAGE_CONNECTION_STRING"].replace(
                "AccountKey=E", "AccountKey=F"
            )
            wrong = data("list", place, AZURE_STORAGE_CONNECTION_STRING=text)
            assert "error[object-denied]" in wrong.stderr and "AWS" not in wrong.stderr


def test_objects_of_other_clients_are_compared_with_their_etags(bucket, tmp_path, store) -> None:
    content = os.urandom(PART * 2 + 77)
    (tmp_path / "f").write_bytes(content)
    remote = {
        "RCLONE_CONFIG_S_TYPE": "s3", "RCLONE_CONFIG_S_PROVIDER": "Other",
        "RCLONE_CONFIG_S_ENDPOINT": store.endpoint, "RCLONE_CONFIG_S_ENV_AUTH": "true",
        "RCLONE_CONFIG_S_CHUNK_SIZE": "7M", "RCLONE_CONFIG_S_UPLOAD_CUTOFF": "7M",
    }  # fmt: skip
    subprocess.run(
        ["rclone", "copy", str(tmp_path / "f"), f"S:{bucket}/r"],
        check=True, env={**os.environ, **remote}, timeout=60,
    )  # fmt: skip
    came = fetched(f"s3://{bucket}/r", tmp_path / "r")
    assert (tmp_path / "r" / "f").read_bytes() == content and came.unverified == ()
    fetched(f"s3://{bucket}/r/f", tmp_path / "single")
    assert (tmp_path / "single").read_bytes() == content


@pytest.mark.parametrize(
    "fault", ["cut", pytest.param("slow", marks=pytest.mark.full), "503", "wrong"]
)
def test_faults_on_the_way_are_overcome(
    fault, bucket, store, folder, tmp_path, monkeypatch
) -> None:
    sent(f"s3://{bucket}/set", folder)
    with faulty(store) as (through, faults):
        use(through, monkeypatch)
        seen: set[str] = set()

        def first(method: str, path: str, number: int) -> str:
            if method != "GET" or "list-type" in path or path in seen or len(seen) > 4:
                return ""
            seen.add(path)
            return fault

        faults.fault = first
        back = fetched(f"s3://{bucket}/set", tmp_path / "back")
    came = contents(tmp_path / "back")
    came.pop(data_list.NAME)
    assert seen and came == contents(folder) and back.unverified == ()


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("cut", "object-failed"),
        pytest.param("503", "object-failed", marks=pytest.mark.full),
        ("wrong", "object-checksum"),
    ],
)
def test_faults_that_stay_end_with_one_message(
    fault, check, bucket, store, tmp_path, monkeypatch
) -> None:
    store.put(bucket, {"set/file": os.urandom(5000)})
    with faulty(store) as (through, faults):
        use(through, monkeypatch)
        faults.fault = lambda method, path, number: fault if "/file" in path else ""
        stopped(check, fetched, f"s3://{bucket}/set", tmp_path / "back")
    assert not any(p.is_file() for p in (tmp_path / "back").rglob("*"))


def test_object_that_changes_after_it_was_listed_stops_the_download(
    bucket, store, tmp_path
) -> None:
    store.put(bucket, {"set/file": b"one", "set/other": b"other"})
    opened = open_store(f"s3://{bucket}/set")
    listing = survey(opened)
    store.put(bucket, {"set/file": b"two"})
    text = stopped(
        "object-changed", fetch, opened, listing, str(tmp_path / "x"), Cache(tmp_path / "c")
    )
    assert f"s3://{bucket}/set/file" in text


LOAD = """
import sys
import threading
from pathlib import Path
from fairlead.objects.cache import Cache
from fairlead.objects.fetch import fetch
from fairlead.objects.registry import open_store
from fairlead.objects.survey import survey
store = open_store(sys.argv[1])
print(fetch(store, survey(store), sys.argv[2], Cache(Path(sys.argv[3]))).moved)
"""


def test_download_goes_on_after_a_kill(bucket, store, folder, tmp_path, monkeypatch) -> None:
    sent(f"s3://{bucket}/set", folder)
    with faulty(store) as (through, faults):
        use(through, monkeypatch)

        monkeypatch.setenv("FAIRLEAD_OBJECT_WAIT", "60")
        last = f"/large bytes={2 * PART}-"
        faults.fault = lambda method, path, number: "hold" if last in path else ""
        words = [sys.executable, "-c", LOAD, f"s3://{bucket}/set"]
        first = subprocess.Popen([*words, str(tmp_path / "one"), str(tmp_path / "cache")])
        assert faults.held.wait(60)
        cache, deadline = tmp_path / "cache", time.monotonic() + 30
        while time.monotonic() < deadline:
            lines = sum(f.read_text().count("\n") for f in cache.glob("partial/*.parts"))
            if lines == 2 and len(list(cache.glob("objects/*"))) == 23:
                break  # two pieces of the large file, and all others
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        first.wait(20)
        faults.released.set()
        faults.fault = lambda method, path, number: ""
        done = subprocess.run(
            [*words, str(tmp_path / "two"), str(tmp_path / "cache")],
            capture_output=True, text=True, timeout=100, check=True,
        )  # fmt: skip
    assert int(done.stdout) == 12345  # of more than 33 MB
    came = contents(tmp_path / "two")
    came.pop(data_list.NAME)
    assert came == contents(folder)


@pytest.mark.full
def test_set_of_more_files_than_a_process_may_open_is_loaded(bucket, store, tmp_path) -> None:
    store.put(bucket, {f"many/{n:03d}": b"%d" % n for n in range(150)})
    limited = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n" + LOAD
    words = [sys.executable, "-c", limited, f"s3://{bucket}/many"]
    subprocess.run([*words, tmp_path / "many", tmp_path / "cache"], check=True, timeout=60)
    assert (tmp_path / "many" / "149").read_bytes() == b"149"


def test_upload_goes_on_after_a_kill_part_by_part(bucket, store, tmp_path, monkeypatch) -> None:
    top = tmp_path / "results"
    top.mkdir()
    (top / "large").write_bytes(os.urandom(4 * PART + 5))
    (top / "small").write_bytes(b"s")
    program = """
import sys
import threading
from fairlead.objects.registry import open_store
from fairlead.objects.send import Source, send
from pathlib import Path
top = Path(sys.argv[2])
sources = [Source(p.name, str(p), p.stat().st_size) for p in sorted(top.iterdir())]
print(send(open_store(sys.argv[1]), sources).moved)
"""
    words = [sys.executable, "-c", program, f"s3://{bucket}/out", str(top)]
    with faulty(store) as (through, faults):
        use(through, monkeypatch)
        monkeypatch.setenv("FAIRLEAD_OBJECT_WAIT", "60")
        killed_in_an_upload(words, faults)
    use(store, monkeypatch)
    stopped("object-incomplete", survey, open_store(f"s3://{bucket}/out"))
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=True)
    assert int(done.stdout) < 3 * PART
    fetched(f"s3://{bucket}/out", tmp_path / "back")
    assert (tmp_path / "back" / "large").read_bytes() == (top / "large").read_bytes()


def test_damage_in_the_store_itself_is_found(bucket, store, folder, tmp_path) -> None:
    sent(f"s3://{bucket}/set", folder)
    good = store.get(bucket, "set/deep/er/run")
    store.put(bucket, {"set/deep/er/run": good.replace(b"/sh", b"/hs")})
    text = stopped("object-checksum", fetched, f"s3://{bucket}/set", tmp_path / "back")
    assert "deep/er/run" in text


def test_set_whose_list_names_a_missing_file_is_refused(bucket, store, folder, tmp_path) -> None:
    sent(f"s3://{bucket}/set", folder)
    open_store(f"s3://{bucket}/set").delete("large")
    assert "large" in stopped("object-set", fetched, f"s3://{bucket}/set", tmp_path / "back")


def test_what_can_be_wrong_is_named_before_anything_is_copied(bucket, store, monkeypatch) -> None:
    store.put(bucket, {"set/file": b"x"})
    url = f"s3://{bucket}/set"

    def listed(what: str = url) -> object:
        return survey(open_store(what))

    stopped("object-missing", listed, "s3://no-such-bucket/set")
    assert "nothing is there" in stopped("object-missing", listed, f"s3://{bucket}/tes")
    use(store, monkeypatch, *GUEST)
    stopped("object-denied", listed)
    use(store, monkeypatch, "lab:owner", "wrong-secret")
    stopped("object-credential", listed)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "NoCredentials" in stopped("object-credential", listed)
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    stopped("object-credential", listed)
    monkeypatch.delenv("AWS_PROFILE")
    use(store, monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    stopped("object-failed", listed)
    with faulty(store) as (through, faults):
        use(through, monkeypatch)
        faults.fault = lambda method, path, number: "400 ExpiredToken"
        assert "expired" in stopped("object-credential", listed)


def test_clock_that_is_off_is_named_with_the_difference(bucket, store) -> None:
    store.put(bucket, {"set/file": b"x"})
    program = (
        "import sys\nfrom fairlead.objects.registry import open_store\n"
        "from fairlead.objects.survey import survey\nfrom fairlead.base.errors import FairleadError\n"
        "try:\n    survey(open_store(sys.argv[1]))\n"
        "except FairleadError as exc:\n    print(exc.findings[0])\n"
    )
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    env = {
        **os.environ, "LD_PRELOAD": str(library), "FAKETIME": "-1h",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    words = [sys.executable, "-c", program, f"s3://{bucket}/set"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert "object-clock" in done.stdout and "behind the store's" in done.stdout, done
    assert "3600 s" in done.stdout or "3601 s" in done.stdout or "3599 s" in done.stdout


@pytest.mark.parametrize(
    "names",
    [["a//b"], ["a/../b"], ["./a"], ["a", "a/b"], ["x" * 300], ["a/"]],
    ids=["double slash", "dots", "dot", "file and folder", "long", "content at a folder"],
)
def test_names_that_are_no_paths_are_refused(names, bucket, store, tmp_path) -> None:
    import botocore.exceptions

    try:
        store.put(bucket, {f"set/{name}": b"x" for name in names})
    except botocore.exceptions.ClientError as exc:  # this store does not take the name either
        pytest.skip(str(exc))
    assert "cannot be paths" in stopped(
        "object-names", fetched, f"s3://{bucket}/set", tmp_path / "back"
    )


def test_folder_markers_become_folders(bucket, store, tmp_path) -> None:
    store.put(bucket, {"set/": b"", "set/empty/": b"", "set/a/b": b"x"})
    fetched(f"s3://{bucket}/set", tmp_path / "back")
    assert (tmp_path / "back" / "empty").is_dir() and (tmp_path / "back/a/b").read_bytes() == b"x"


def test_cache_serves_other_runs_by_digest_and_keeps_its_limit(
    bucket, store, folder, tmp_path, monkeypatch
) -> None:
    sent(f"s3://{bucket}/set", folder)
    store.put(bucket, {"copy/large": (folder / "large").read_bytes()})
    cache, limit = tmp_path / "cache", 100 << 20
    first = fetched(f"s3://{bucket}/set", tmp_path / "one", cache, limit)
    assert first.moved > 2 * PART
    again = fetched(f"s3://{bucket}/set", tmp_path / "two", cache, limit)
    assert again.moved == 0 and again.digest == first.digest
    assert (tmp_path / "two/large").stat().st_nlink == 3  # one file for all
    # Another name of the same content, known by the list only.
    sent(f"s3://{bucket}/third", folder)
    listed = len(store.get(bucket, f"third/{data_list.NAME}"))
    assert fetched(f"s3://{bucket}/third", tmp_path / "three", cache, limit).moved == listed
    # A damaged file is not served.
    kept = Cache(cache).path(first.files["large"])
    kept.chmod(0o600)
    with kept.open("r+b") as stream:
        stream.write(b"damage")
    repaired = fetched(f"s3://{bucket}/set", tmp_path / "four", cache, limit)
    assert repaired.moved == (folder / "large").stat().st_size
    assert (tmp_path / "four/large").read_bytes() != (tmp_path / "one/large").read_bytes()
    # The least recently used go first.
    store.put(bucket, {"new/file": os.urandom(30 << 20)})
    fetched(f"s3://{bucket}/new", tmp_path / "five", cache, 40 << 20)
    sizes = [one.bytes for one in Cache(cache).kept()]
    assert sum(sizes) <= 40 << 20 and 30 << 20 in sizes


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_shared_cache_trusts_no_other_user(bucket, store, tmp_path, monkeypatch) -> None:
    store.put(bucket, {"set/a": b"right" * 1000, "set/b": b"other" * 1000})
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("FAIRLEAD_DATA_CACHE", str(shared))
    first = fetched(f"s3://{bucket}/set", tmp_path / "one", shared, 1 << 30)
    cache = Cache(shared)
    for path in [p for p in shared.rglob("*") if p.is_file()]:
        os.chown(path, 65534, 65534)
    # Another user's note says that `a` is what `b` is: it is not believed, and `a` is loaded again.
    for note in (shared / "known").iterdir():
        note.write_text(first.files["b"])
    second = fetched(f"s3://{bucket}/set", tmp_path / "two", shared, 1 << 30)
    assert second.moved == 10_000 and (tmp_path / "two/a").read_bytes() == b"right" * 1000
    # Another user's file is a copy here, and is compared: its owner may have changed it.
    sent(f"s3://{bucket}/listed", tmp_path / "one")
    for name, sha256 in first.files.items():
        os.chown(cache.path(sha256), 65534, 65534)
        if name == "b":
            cache.path(sha256).chmod(0o644)
            cache.path(sha256).write_bytes(b"wrong" * 1000)
    third = fetched(f"s3://{bucket}/listed", tmp_path / "three", shared, 1 << 30)
    assert (tmp_path / "three/b").read_bytes() == b"other" * 1000
    assert (tmp_path / "three/a").stat().st_nlink == 1
    assert third.files["b"] == first.files["b"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two users")
def test_file_of_another_user_that_is_damaged_and_cannot_be_removed_stops_nobody(
    bucket, store, tmp_path, monkeypatch
) -> None:
    store.put(bucket, {"set/a": b"right" * 1000, "set/link": b"x"})
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir()
    shared.chmod(0o1777)
    own.mkdir()
    os.chown(own, 20001, 20001)
    for path in tmp_path.parents:
        path.chmod(path.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    monkeypatch.setenv("FAIRLEAD_DATA_CACHE", str(shared))
    first = fetched(f"s3://{bucket}/set", tmp_path / "one", shared, 1 << 30)
    damaged = Cache(shared).path(first.files["a"])
    damaged.chmod(0o644)
    damaged.write_bytes(b"wrong" * 1000)
    assert {
        p.name for p in shared.iterdir() if p.is_dir() and not p.stat().st_mode & 0o1000
    } == set()
    program = f"import os; os.setgid(20001); os.setuid(20001)\n{LOAD}"
    words = [sys.executable, "-c", program, f"s3://{bucket}/set", own / "two", shared]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert (own / "two/a").read_bytes() == b"right" * 1000
    assert damaged.read_bytes() == b"wrong" * 1000
    program = "import sys; from pathlib import Path; from fairlead.objects.cache import Cache; print(len(Cache(Path(sys.argv[1])).shrink(0)))"
    words = [
        "setpriv",
        "--reuid=20001",
        "--regid=20001",
        "--clear-groups",
        sys.executable,
        "-c",
        program,
        shared,
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "0\n" and damaged.exists()


def test_files_over_http_come_by_the_list(folder, tmp_path) -> None:
    entries = [
        data_list.ListedFile(n, None, len(c), hashlib.sha256(c).hexdigest())
        for n, c in contents(folder).items()
        if "#" not in n and "?" not in n and "%" not in n
    ]
    with web(folder) as served:
        assert "data.json" in stopped("object-url", fetched, f"{served.endpoint}/", tmp_path / "x")
        data_list.write_list(folder, entries)
        back = fetched(f"{served.endpoint}/", tmp_path / "back")
        fetched(f"{served.endpoint}/large", tmp_path / "single")
    assert set(back.files) == {entry.name for entry in entries} | {data_list.NAME}
    assert (tmp_path / "back/large").read_bytes() == (folder / "large").read_bytes()
    assert (tmp_path / "single").read_bytes() == (folder / "large").read_bytes()


class Answers(http.server.BaseHTTPRequestHandler):
    """A web server that answers as the first part of the path says."""

    def do_GET(self) -> None:
        self.send_error(int(self.path.split("/")[1]))

    do_HEAD = do_GET

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.parametrize("below", ["file", "folder/"])
def test_web_server_that_refuses_or_fails_has_not_a_missing_file(below, tmp_path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = f"http://127.0.0.1:{server.server_port}"
        for status, check in {
            401: "object-credential", 403: "object-denied", 404: "object-url", 500: "object-failed", 503: "object-failed",
        }.items():  # fmt: skip
            stopped(check, fetched, f"{at}/{status}/{below}", tmp_path / "x")
        server.shutdown()
    assert "Cannot connect" in stopped(
        "object-failed", fetched, f"{at}/404/{below}", tmp_path / "x"
    )


def test_a_scheme_that_only_fsspec_knows_needs_no_declaration(folder, tmp_path) -> None:
    there = sent("memory://place/set", folder)
    back = fetched("memory://place/set", tmp_path / "back")
    came = contents(tmp_path / "back")
    came.pop(data_list.NAME)
    assert came == contents(folder) and back.digest == there.digest
    assert back.unverified == (data_list.NAME,)
    stopped("object-missing", survey, open_store("memory://place/nothing"))
    assert "paramiko" in stopped("object-package", open_store, "sftp://host/x")
    assert "known are" in stopped("object-url", open_store, "s4://bucket/x")
    stopped("object-url", open_store, "local://host/x")
    assert "s3://BUCKET/PREFIX" in stopped("object-url", open_store, "/scratch/set")


def test_budget_holds_for_all_threads_together() -> None:
    from fairlead.objects.budget import Budget

    budget, begun = Budget(1e6), time.monotonic()
    for _ in range(5):
        budget.spend(100_000)
    assert time.monotonic() - begun > 0.3
