"""The folder of ``-o``, copied to a real S3 store and back: after failures, over faults, and on after a kill."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.object_stores import (
    GUEST,
    OWNER,
    LoopbackStore,
    faulty,
    killed_in_an_upload,
    swift,
)
from tests.system import hosts
from tests.system.hosts import answer, fairlead

from fairlead.base.errors import FairleadError, fail
from fairlead.objects.model import MARK, PART
from fairlead.transfer.job import copied_in, results_out
from fairlead.transfer.model import InItem, OutItem
from fairlead.transfer.remote import check_target, listing_of
from fairlead_build.build import build


@pytest.fixture(scope="module")
def store() -> Iterator[LoopbackStore]:
    with swift() as running:
        running.make_bucket("lab")
        yield running


@pytest.fixture(autouse=True)
def environ(store: LoopbackStore, monkeypatch) -> None:
    use(store, monkeypatch)
    listing_of.cache_clear()


def use(store: LoopbackStore, monkeypatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in store.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FAIRLEAD_OBJECT_WAIT", "5")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As a training leaves it."""
    top = tmp_path / "report"
    (top / "checkpoints/step-5").mkdir(parents=True)
    (top / "checkpoints/step-5/weights").write_bytes(os.urandom(4 * PART + 99))
    (top / "checkpoints/last").symlink_to("step-5")
    (top / "report.json").write_text("{}")
    return top


def test_a_folder_goes_to_a_url_however_the_command_ends(store, folder, tmp_path) -> None:
    outs = [OutItem(".", "s3://lab/one"), OutItem("checkpoints", f"{tmp_path}/copy")]
    with pytest.raises(FairleadError) as caught, results_out(outs, str(folder)) as results:
        raise fail("stage-source-missing", source=folder)
    assert [f.check for f in caught.value.findings] == ["stage-source"]
    assert [item.target for item in results.moved] == ["s3://lab/one", f"{tmp_path}/copy"]
    weights = (folder / "checkpoints/step-5/weights").read_bytes()
    assert store.get("lab", "one/checkpoints/step-5/weights") == weights
    assert (tmp_path / "copy/last/weights").read_bytes() == weights
    # And back, where an earlier run's own is not touched.
    ins = [InItem("s3://lab/one/checkpoints", "checkpoints"), InItem("s3://lab/one", "all")]
    there = tmp_path / "elsewhere"
    (there / "all").mkdir(parents=True)
    found = copied_in(ins, str(there))
    assert [f.check for f in found] == ["stage-in"]
    assert (there / "checkpoints/last/weights").read_bytes() == weights
    assert sorted(p.name for p in there.iterdir()) == ["all", "checkpoints"]
    assert list((there / "all").iterdir()) == []


def test_what_is_lacking_or_cannot_be_written_is_said_and_fetched_by_the_printed_line(
    store, folder, monkeypatch
) -> None:
    with faulty(store) as (through, faults):
        use(through, monkeypatch)
        faults.fault = lambda method, path, number: (
            "503" if method == "PUT" and "report.json" in path else ""
        )
        outs = [OutItem(".", "s3://lab/late"), OutItem("weights", "s3://lab/none")]
        with results_out(outs, str(folder)) as results:
            pass
    (late, none) = results.findings
    assert late.check == none.check == "stage-out" and "no weights to copy" in none.what
    assert f"late/{MARK}" in store.keys("lab", "late/")
    use(store, monkeypatch)
    line = late.remedy.partition(": ")[2]
    done = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=60, check=True)
    assert OWNER[1] not in line + done.stderr and MARK not in "".join(store.keys("lab", "late/"))


def test_a_copy_goes_on_after_a_kill(store, folder, monkeypatch) -> None:
    url = "s3://lab/killed"
    words = [sys.executable, "-m", "fairlead.transfer", "copy", str(folder), "--item", ".", url]
    with faulty(store) as (through, faults):
        use(through, monkeypatch)
        monkeypatch.setenv("FAIRLEAD_OBJECT_WAIT", "60")
        killed_in_an_upload(words, faults)
    use(store, monkeypatch)
    with pytest.raises(FairleadError) as caught:
        copied_in([InItem(url, "back")], str(folder))
    assert [f.check for f in caught.value.findings] == ["object-incomplete"]
    store.put("lab", {"killed/checkpoints/step-3/weights": b"of a command that was killed"})
    check_target(url)  # so the same command may write there again
    with results_out([OutItem(".", url)], str(folder)) as results:
        pass
    assert results.findings == [] and results.moved[0].data < 3 * PART
    names = [f"killed/{name}" for name in ("checkpoints/last", "checkpoints/step-5/weights",
                                           "data.json", "report.json")]  # fmt: skip
    assert sorted(store.keys("lab", "killed/")) == names
    with pytest.raises(FairleadError) as caught:
        check_target(url)
    assert [f.check for f in caught.value.findings] == ["object-exists"]


@pytest.mark.parametrize(
    ("words", "user", "check"),
    [
        (("--stage-out", "s3://no-such-bucket/x"), OWNER, "object-missing"),
        (("--stage-out", "s3://lab/denied"), GUEST, "object-denied"),
        (("--stage-out", "s4://lab/x"), OWNER, "object-url"),
        (("--stage-out", "checkpoints:s3://key:word@lab/x"), OWNER, "object-url"),
        (("--stage-out", "out/x", "-o", "out"), OWNER, "usage"),
        (("--stage-in", "s3://lab/nothing"), OWNER, "object-missing"),
        (("--artifacts", "s3://lab/denied"), GUEST, "object-denied"),
        (("--artifacts", "folder"), OWNER, "usage"),
    ],
)
def test_what_is_wrong_is_one_message_before_anything_starts(
    words, user, check, store, tmp_path
) -> None:
    build("mpi-base")
    space = tmp_path / "space.toml"
    space.write_text("[parameters.x]\nlow = 0.0\nhigh = 1.0\n")
    verb = ("train", "hepcnn", "-n", "1")
    if "--artifacts" in words:
        script = hosts.PROGRAMS / "tune_trial.py"
        verb = ("tune", script, "--space", space, "--trials", "1", "--image", "mpi-base",
                "-o", tmp_path / "out")  # fmt: skip
    done = fairlead(*verb, "--json", *words, env=store.environ(*user))
    assert done.returncode == 2, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == check and finding["remedy"]
    for secret in (OWNER[1], GUEST[1], "word@"):
        assert secret not in done.stdout + done.stderr


# --- searches ------------------------------------------------------------------------------------


@pytest.fixture
def search(tmp_path: Path) -> list[str]:
    build("mpi-base")
    space = tmp_path / "space.toml"
    space.write_text("[parameters.x]\nlow = 0.0\nhigh = 1.0\n")
    words = ["tune", str(hosts.PROGRAMS / "tune_trial.py"), "--space", str(space), "--image",
             "mpi-base", "-o", str(tmp_path / "out"), "--sampler", "random"]  # fmt: skip
    return [*words, "--at-once", "2"]


def tuned(words: list[str], code: int = 0) -> dict:
    done = fairlead(*words[:2], "--json", *words[2:])
    assert done.returncode == code, done.stdout + done.stderr
    assert OWNER[1] not in done.stdout + done.stderr
    return json.loads(done.stdout)


def chosen(result: dict) -> list[float]:
    return [trial["parameters"]["x"] for trial in result["result"]["trials"]]


@pytest.mark.full
def test_a_search_goes_on_from_its_url_where_its_folder_is_lost(store, search, tmp_path) -> None:
    kept = ("--artifacts", "s3://lab/search")
    first = tuned([*search, *kept, "--trials", "3"])
    keys = set(store.keys("lab", "search/"))
    names = [f"trials/{n:05}/{file}" for n in range(3) for file in ("outcome.json", "output.log")]
    assert {f"search/{n}" for n in ("journal.log", "best.toml", "report.html", *names)} <= keys
    shutil.rmtree(tmp_path / "out")
    second = tuned([*search, *kept, "--trials", "4"])
    assert chosen(second)[:3] == chosen(first) and second["findings"] == []
    assert all(trial["attempt"] == 1 for trial in second["result"]["trials"])
    # Folder and URL are of one search.
    shutil.copytree(tmp_path / "out", tmp_path / "old")
    tuned([*search, *kept, "--trials", "5"])
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "old").rename(tmp_path / "out")
    ahead = tuned([*search, *kept, "--trials", "5"], 2)
    assert "has gone on elsewhere" in ahead["findings"][0]["what"]
    store.put("lab", {"other/search.json": b'{"search": "another"}', "taken/file": b"x"})
    other = tuned([*search, "--artifacts", "s3://lab/other", "--trials", "5"], 2)
    assert "of two searches" in other["findings"][0]["what"]
    taken = tuned([*search, "--artifacts", "s3://lab/taken", "--trials", "5"], 2)
    assert taken["findings"][0]["check"] == "object-exists"


@pytest.mark.full
def test_a_search_that_is_killed_has_at_its_url_what_its_journal_says(
    store, search, tmp_path
) -> None:
    words = [*search, "--artifacts", "s3://lab/killed-search", "--trials", "6"]
    line = [sys.executable, "-m", "fairlead", *words]
    first = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    journal = "killed-search/journal.log"
    while journal not in store.keys("lab", "killed-search/") and time.monotonic() < deadline:
        time.sleep(0.1)
    first.kill()
    first.wait(20)
    lines = [json.loads(line) for line in store.get("lab", journal).splitlines()]
    keys = store.keys("lab", "killed-search/trials/")
    ended = {entry["trial_id"] for entry in lines if entry["op_code"] == 6 and entry["state"] == 1}
    assert ended and all(f"killed-search/trials/{n:05}/outcome.json" in keys for n in ended)
    words[words.index("-o") + 1] = str(tmp_path / "elsewhere")
    result = tuned(words)["result"]
    assert [trial["state"] for trial in result["trials"]] == ["complete"] * 6


@pytest.mark.full
def test_a_store_that_fails_for_a_while_ends_no_search(store, search, monkeypatch) -> None:
    with faulty(store) as (through, faults):
        use(through, monkeypatch)
        gone = [True]
        faults.fault = lambda method, path, number: (
            "503" if method == "PUT" and "/trials/00000/" in path and gone[0] else ""
        )
        words = [*search, "--artifacts", "s3://lab/away", "--trials", "1"]
        failed = tuned(words, 123)
        assert [f["check"] for f in failed["findings"]] == ["object-failed"]
        assert [trial["state"] for trial in failed["result"]["trials"]] == ["complete"]
        assert "away/journal.log" not in store.keys("lab", "away/")
        gone[0] = False
        assert tuned(words)["findings"] == []
    assert "away/journal.log" in store.keys("lab", "away/")


# --- a training ----------------------------------------------------------------------------------


@pytest.mark.full
def test_a_training_goes_on_elsewhere_from_the_checkpoints_at_a_url(store, tmp_path) -> None:
    build("tensorflow")
    words = ("train", "hepcnn", "-n", "2", "--train-events", "600", "--json", "--seed", "3")
    whole = fairlead(*words, "--epochs", "2", "-o", tmp_path / "whole", "--checkpoint-steps", "5",
                     "--stage-out", "s3://lab/whole", limit_s=400)  # fmt: skip
    assert whole.returncode == 0, whole.stdout + whole.stderr
    first = answer(whole)
    (went,) = first["stage"]["out"]
    assert went["target"] == "s3://lab/whole" and first["stage"]["findings"] == []
    assert {"whole/report.html", "whole/report.json"} <= set(store.keys("lab", "whole/"))
    again = fairlead(*words, "--epochs", "2", "-o", tmp_path / "elsewhere", "--resume",
                     "--stage-in", "s3://lab/whole/checkpoints", limit_s=400)  # fmt: skip
    assert again.returncode == 0, again.stdout + again.stderr
    second = answer(again)
    assert second["result"]["all"]["resumed_from"]
    finals = [a["result"]["all"]["weights"][0]["final"] for a in (first, second)]
    assert finals[0] == finals[1]
    # Ranks that the kernel ends after some seconds of computing.
    broken = hosts.program("prlimit", "--cpu=9:60", sys.executable, "-m", "fairlead", *words, "-o", tmp_path / "broken",
                           "--epochs", "50", "--stage-out", "s3://lab/broken", limit_s=400)  # fmt: skip
    assert broken.returncode not in (0, 2), broken.stdout + broken.stderr
    assert "SIGXCPU" in broken.stdout, broken.stdout
    assert "broken/ranks.log" in store.keys("lab", "broken/")


@pytest.mark.full
def test_a_validation_goes_to_a_url_with_its_page_and_numbers(store, tmp_path) -> None:
    image = hosts.image("mpi-base")
    words = (
        "validate",
        "--quick",
        "--models",
        "none",
        "--image",
        image,
        "--despite-load",
        "--json",
    )
    done = fairlead(
        *words, "-o", tmp_path / "kept", "--stage-out", "s3://lab/validation", limit_s=500
    )
    assert done.returncode in (0, 125), done.stdout + done.stderr
    (went,) = answer(done)["stage"]["out"]
    assert went["target"] == "s3://lab/validation"
    here = sorted(
        p.relative_to(tmp_path / "kept") for p in (tmp_path / "kept").rglob("*") if p.is_file()
    )
    there = {key for key in store.keys("lab", "validation/") if not key.endswith("/")}
    assert there == {"validation/data.json", *(f"validation/{path}" for path in here)}
    back = fairlead("data", "sync", "s3://lab/validation", tmp_path / "back", limit_s=100)
    assert back.returncode == 0, back.stdout + back.stderr
    for path in here:
        assert (tmp_path / "back" / path).read_bytes() == (tmp_path / "kept" / path).read_bytes()
