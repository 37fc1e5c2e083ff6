"""Records of real runs: by stock tools, repeated, and of runs that end badly."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts

from fairlead.base.paths import atomic_folder

SCRIPT = hosts.PROGRAMS / "recorded.py"
RUN = ("run", "-n", "2")
SECRET = "s3cr3t-0123456789"
# What others verify records with; not in the development environment, whose versions they would hold back.
STOCK = (
    "roc-validator==0.13.0",
    "rocrate==0.16.0",
    "securesystemslib==1.6.0",
    "in-toto-attestation==0.9.3",
)


@cache
def stock() -> Path:
    """A folder of the packages of :data:`STOCK`."""
    digest = hashlib.sha256(" ".join(STOCK).encode()).hexdigest()[:12]
    kept = hosts.KEPT / f"record-readers-{digest}"
    if not kept.is_dir():
        with atomic_folder(kept) as tree:
            pip = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--no-warn-conflicts",
                "--target",
                tree,
                *STOCK,
            ]
            subprocess.run(pip, check=True, timeout=600)
    return kept


def _stock(code: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Python with those packages, which knows nothing of fairlead."""
    return hosts.program(sys.executable, "-c", code, *words, env={"PYTHONPATH": str(stock())})


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the program and its input."""
    shutil.copy(SCRIPT, tmp_path / "sum.py")
    (tmp_path / "in.txt").write_text("42\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user with a key, which this user trusts."""
    folder = tmp_path_factory.mktemp("home")
    env = {"XDG_CONFIG_HOME": str(folder), "FAIRLEAD_KEY_PASSPHRASE": "correct horse"}
    made = hosts.answer(hosts.fairlead("key", "new", "--json", env=env))
    hosts.fairlead("key", "trust", made["public"], env=env)
    return {**env, "KEY": made["private"], "PUBLIC": made["public"], "ID": made["key"]}


def _recorded(
    *words: str | Path, how: str = "same", code: int = 0, env: dict[str, str] | None = None
) -> dict[str, Any]:
    """What run.json says of a run that is recorded in ``record``."""
    data = ("--input", "in.txt", "--result", "out", "--result", "sum.txt")
    line = (
        *RUN,
        "--record",
        "record",
        *data,
        *words,
        hosts.image(),
        "--",
        "python3",
        "sum.py",
        how,
    )
    done = hosts.fairlead(*line, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(Path("record/run.json").read_bytes())
    return found


def _replayed(*words: str, code: int = 0) -> dict[str, Any]:
    done = hosts.fairlead("replay", "record", "--json", *words)
    assert done.returncode == code, done.stdout + done.stderr
    return hosts.answer(done)


def _refused(*words: str | Path, env: dict[str, str] | None = None) -> str:
    """The one message of a command that is refused."""
    done = hosts.fairlead(*words, env=env)
    assert done.returncode and done.stderr.count("error[") == 1, done.stdout + done.stderr
    return done.stderr[done.stderr.index("error[") :]


def test_record_holds_all_of_a_run_and_no_secret(work: Path) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "sum.py"], check=True)
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, "commit", "-qm", "first"], check=True)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    environ = {"OMP_NUM_THREADS": "1", "HF_TOKEN": SECRET, "FAIRLEAD_KEY_PASSPHRASE": SECRET}
    secrets = ("--env", f"DB_PASSWORD={SECRET}", "--env", f"DATA=https://me:{SECRET}@example.org/")
    run = _recorded(*secrets, env=environ)
    before, ranks = run["before"], run["ranks"]
    shown = hosts.answer(hosts.fairlead("inspect", hosts.image(), "--json"))["image"]
    assert before["image"]["sha256"] == shown["digest"]
    assert before["image"]["lock_sha256"] == shown["record"]["lock_sha256"]
    assert before["image"]["sbom_sha256"] == shown["record"]["sbom"]["sha256"]
    assert before["code"]["commit"] == commit.stdout.strip() and not before["code"]["diff_sha256"]
    assert before["script"]["sha256"] == hashlib.sha256(SCRIPT.read_bytes()).hexdigest()
    assert before["environment"]["shell"]["OMP_NUM_THREADS"] == "1"
    assert [data["name"] for data in run["results"]] == ["out", "sum.txt"]
    sums = hashlib.sha256((work / "sum.txt").read_bytes()).hexdigest()
    assert run["results"][1]["sha256"] == sums and run["results"][0]["before"] == "absent"
    assert ranks["proved"] and list(ranks["hosts"].values()) == ["0-1"]
    assert ranks["groups"][0]["transport"] not in ("", "unknown")
    libraries = {library["path"]: library for library in ranks["libraries"]}
    mpi = libraries[ranks["groups"][0]["mpi"]]
    assert mpi["source"] == "host" and len(mpi["sha256"]) == 64
    # Mapped only after MPI had started.
    assert any(
        "numpy/random/" in path and one["source"] == "image" for path, one in libraries.items()
    )
    for file in (work / "record").iterdir():
        assert SECRET.encode() not in file.read_bytes(), file


@pytest.mark.full
def test_stock_validator_accepts_the_crate_as_a_process_run_crate(work: Path) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    _recorded("--env", "OMP_NUM_THREADS=2")
    assert hosts.fairlead(*RUN, "--record", "failed", hosts.image(), "--", "false").returncode == 1
    shutil.copytree("record", "wrong")
    crate = Path("wrong/ro-crate-metadata.json")
    crate.write_text(crate.read_text().replace('"instrument"', '"tool"'))
    # The validator reads RO-Crate's context by its address: here from the installed `rocrate`, without a network.
    code = """
import sys
from pathlib import Path
import requests, rocrate
from requests_cache import CachedResponse, CachedSession
from rocrate_validator import services
cache, *folders = sys.argv[1:]
address = "https://w3id.org/ro/crate/1.1/context"
accept = {"Accept": "application/ld+json, application/json, */*;q=0.1"}
session = CachedSession(cache, backend="sqlite", expire_after=-1)
context = (Path(rocrate.__file__).parent / "data/ro-crate.jsonld").read_bytes()
answer = CachedResponse(content=context, status_code=200, url=address, headers={"Content-Type": "application/ld+json"})
request = session.prepare_request(requests.Request("GET", address, headers=accept))
session.cache.responses[session.cache.create_key(request)] = answer
for folder in folders:
    result = services.validate(services.ValidationSettings(
        rocrate_uri=folder, profile_identifier="process-run-crate", requirement_severity="RECOMMENDED",
        offline=True, cache_path=cache))
    for issue in result.get_issues():
        print(folder, issue.severity.name, issue.message, issue.violatingEntity, sep=": ")
"""
    done = _stock(code, work / "cache", "record", "failed", "wrong")
    assert done.returncode == 0, done.stderr[-3000:]
    issues = done.stdout.splitlines()
    assert [line for line in issues if ": REQUIRED: " in line] == [
        line for line in issues if line.startswith("wrong: REQUIRED: The Action MUST have an instrument")
    ] != []  # fmt: skip
    # What a run has no address, licence or publisher for.
    known = (
        "The Application SHOULD have a url", "id SHOULD be an absolute URI", "SHOULD have a registry",
        "the schema_org:license type", "SHOULD be an `Organization`", "./#user",
    )  # fmt: skip
    more = [
        line for line in issues if line.startswith("record") and not any(k in line for k in known)
    ]
    assert more == []


def test_stock_libraries_verify_the_statement_and_refuse_a_changed_byte(
    work: Path, key: dict[str, str]
) -> None:
    _recorded("--record-key", key["KEY"], env=key)
    code = """
import base64, json, sys
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1 import statement_pb2
from google.protobuf import json_format
folder, public, keyid = sys.argv[1:]
raw = base64.b64decode(open(public).read().split()[1])[-32:]
key = SSlibKey(keyid, "ed25519", "ed25519", {"public": raw.hex()})
envelope = Envelope.from_dict(json.load(open(folder + "/statement.dsse.json")))
envelope.verify([key], 1)
statement = json_format.Parse(envelope.payload, statement_pb2.Statement())
Statement.copy_from_pb(statement).validate()
print(statement.type, statement.predicate_type, *(s.name for s in statement.subject))
"""
    done = _stock(code, work / "record", key["PUBLIC"], key["ID"])
    kind, predicate, *subjects = done.stdout.split()
    assert (kind, predicate) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    assert {"out", "sum.txt", "run.json", "ro-crate-metadata.json"} <= {*subjects}
    assert hosts.fairlead("verify", "record", env=key).returncode == 0
    envelope = work / "record/statement.dsse.json"
    document = json.loads(envelope.read_bytes())
    text = base64.b64decode(document["payload"])
    document["payload"] = base64.b64encode(text.replace(b"sum.txt", b"sun.txt")).decode()
    envelope.write_text(json.dumps(document))
    done = _stock(code, work / "record", key["PUBLIC"], key["ID"])
    assert done.returncode and "VerificationError" in done.stderr
    assert "is damaged, or was changed" in _refused("verify", "record", env=key)


def test_record_is_signed_later_and_its_signature_counts(work: Path, key: dict[str, str]) -> None:
    _recorded()
    assert "is not signed" in _refused("verify", "record", env=key)
    assert hosts.fairlead("sign", "record", env=key).returncode == 0
    said = hosts.fairlead("verify", "record", env=key)
    assert said.returncode == 0 and f"signed with key {key['ID']}" in said.stdout
    stranger = {"XDG_CONFIG_HOME": str(work / "none")}
    assert "a key that is not trusted" in _refused("replay", "record", env=stranger)
    done = hosts.fairlead("replay", "record", "--key", key["PUBLIC"], env=stranger)
    assert done.returncode == 0 and f"signed with key {key['ID']}" in done.stderr, done.stderr
    file = work / "record/run.json"
    file.write_bytes(file.read_bytes().replace(b'"exit_code": 0', b'"exit_code": 3'))
    assert "is damaged, or was changed" in _refused("replay", "record", env=key)


def test_replay_gives_the_same_bytes_and_leaves_results_in_their_places(work: Path) -> None:
    _recorded()
    before = {path.name: path.stat().st_ino for path in work.iterdir()}
    found = _replayed("--record", "second")
    assert found["same"] and not [
        d for d in found["differences"] if d["kind"] in ("result", "library")
    ]
    assert {
        path.name: path.stat().st_ino for path in work.iterdir() if path.name != "second"
    } == before
    done = hosts.fairlead("replay", "record", "--against", "second")
    assert done.returncode == 0
    assert done.stdout.startswith("same: exit code 0, 2 results byte for byte")
    shutil.rmtree("out")  # somebody else's record: there are no results to keep
    assert _replayed()["same"] and Path("out/sum.npy").exists()


def test_replay_names_what_differs_with_the_result_first(work: Path) -> None:
    _recorded(how="differs", env={"OMP_NUM_THREADS": "1"})
    old = Path("out/sum.npy").read_bytes()
    done = hosts.fairlead("replay", "record", env={"OMP_NUM_THREADS": "2"})
    verdict, *lines = done.stdout.splitlines()
    assert done.returncode == 1 and verdict.startswith("differs: out, sum.txt")
    assert [line.split(":")[0] for line in lines] == ["result", "result", "variable"]
    assert lines[2] == "variable: OMP_NUM_THREADS: 1 → 2"
    assert Path("out/sum.npy").read_bytes() == old
    assert Path("out.replayed/sum.npy").read_bytes() != old and Path("sum.txt.replayed").exists()
    done = hosts.fairlead("replay", "record", "--json", "--dry-run", env={"OMP_NUM_THREADS": "2"})
    found = hosts.answer(done)
    assert found["same"] is None and [d["name"] for d in found["differences"]] == [
        "OMP_NUM_THREADS"
    ]


def test_replay_on_another_mpi_says_so(work: Path) -> None:
    _recorded()
    record = Path("record/run.json").read_text()
    other = hosts.fairlead("run", "--help").stdout
    assert "--mpi" in other and "--mpi" not in record
    second = (
        *RUN,
        "--record",
        "second",
        "--mpi",
        "container",
        "--input",
        "in.txt",
        "--result",
        "out",
        "--result",
        "sum.txt",
    )
    done = hosts.fairlead(*second, hosts.image(), "--", "python3", "sum.py", "same")
    assert done.returncode == 0, done.stderr
    kinds = [d["kind"] for d in _replayed("--against", "second")["differences"]]
    assert kinds[0] == "MPI" and "library" in kinds and "result" not in kinds


def test_replay_refuses_what_is_not_as_recorded(work: Path) -> None:
    _recorded()
    with Path("sum.py").open("a") as stream:
        stream.write("# changed\n")
    said = _refused("replay", "record")
    assert "script: sum.py: sha256" in said and "--force" in said
    assert _replayed("--dry-run", code=121)["differences"][0]["kind"] == "script"
    assert _replayed("--force")["differences"][0]["kind"] == "script"
    Path("in.txt").unlink()
    assert "input: in.txt: sha256" in _refused("replay", "record")
    Path("elsewhere").mkdir()
    assert "→ not there" in _refused("replay", "record", "--folder", "elsewhere")


def test_replay_without_its_image_names_where_to_get_it(work: Path) -> None:
    mine = work / "mine.sif"
    hosts.same_file(hosts.image(), mine)
    line = (*RUN, "--record", "record", mine, "--", "true")
    assert hosts.fairlead(*line).returncode == 0
    mine.unlink()
    kept = hosts.fairlead("replay", "record")  # by its recipe's name
    assert kept.returncode == 0, kept.stderr
    environ = {"XDG_CACHE_HOME": str(work / "empty")}
    said = _refused("replay", "record", env=environ)
    assert (
        "the image of the record is not here" in said and "next:  fairlead build mpi-base" in said
    )


@pytest.mark.parametrize("how", ["fails", "killed"])
def test_run_that_ends_badly_is_recorded_as_failed_and_may_be_recorded_again(
    work: Path, how: str
) -> None:
    if how == "fails":
        run = _recorded(how="fails", code=5)
        assert run["outcome"]["failed"] == {"1": 5} and "exit code 5" in run["outcome"]["error"]
        assert [data["kind"] for data in run["results"]] == ["absent", "absent"]
        found = _replayed()
        assert found["same"], found
    else:
        line = (
            *RUN,
            "--record",
            "record",
            "--input",
            "in.txt",
            hosts.image(),
            "--",
            "python3",
            "sum.py",
            "waits",
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "fairlead", *map(str, line)], stderr=subprocess.PIPE
        )
        end = time.monotonic() + 60
        while not Path("waiting").exists() and time.monotonic() < end:
            time.sleep(0.1)
        # Another run cannot take its folder.
        assert "another run writes its record" in _refused(
            *RUN, "--record", "record", hosts.image(), "--", "true"
        )
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        run = json.loads(Path("record/run.json").read_bytes())
        assert run["outcome"]["exit_code"] == 130 and run["ranks"]["proved"]
    crate = json.loads(Path("record/ro-crate-metadata.json").read_bytes())
    (action,) = [e for e in crate["@graph"] if e["@type"] == "CreateAction"]
    assert action["actionStatus"] == "http://schema.org/FailedActionStatus" and action["error"]
    assert _recorded()["outcome"]["exit_code"] == 0
    assert not [path for path in work.iterdir() if path.name.startswith(".")]


def _full_disk(work: Path) -> tuple[str | Path, ...]:
    small = work / "small"
    small.mkdir()
    mount = 'mount -t tmpfs -o size=64k tmpfs "$0" && dd if=/dev/zero of="$0/fill" bs=1k count=60 2>/dev/null; exec "$@"'
    line = (*RUN, "--record", small / "record", hosts.image(), "--", "touch", "ran")
    return "unshare", "-m", "sh", "-c", mount, small, sys.executable, "-m", "fairlead", *line


def test_record_on_a_full_disk_is_one_message_and_leaves_nothing(work: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can mount a file system")
    done = hosts.program(*_full_disk(work))
    assert done.returncode == 1 and "cannot write the record" in done.stderr, done.stderr
    assert "No space left on device" in done.stderr and Path("ran").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--record", "mine"), "mine already exists"),
        (("--record", "in.txt/record"), "cannot write the record"),
        (("--record", "r", "--input", "none"), "an input does not exist: none"),
        (("--record", "out/r", "--result", "out"), "--result out: a record holds no data"),
        (("--record", "x/../r", "--input", "r/a"), "--input r/a: a record holds no data"),
        (("--record", "/"), "--record /: give a new folder"),
        (("--input", "in.txt"), "--input is for --record FOLDER"),
        (("--record", "r", "--record-key", "none.key"), "none.key"),
        (("--record", "r", "--input", "pipe"), "it is neither a file nor a folder"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_ranks_start(
    work: Path, words: tuple[str, ...], said: str
) -> None:
    Path("mine").mkdir()
    Path("mine/file").touch()
    os.mkfifo("pipe")
    there = sorted(work.iterdir())
    assert said in _refused(*RUN, *words, hosts.image(), "--", "touch", "ran")
    assert sorted(work.iterdir()) == there


def test_withheld_word_is_not_repeated_but_a_variable_of_this_shell_is(work: Path) -> None:
    own = (*RUN, "--record", "record")
    line = (*own, "--env", f"MY_TOKEN={SECRET}")
    assert (
        hosts.fairlead(*line, hosts.image(), "--", "sh", "-c", "test -n $MY_TOKEN").returncode == 0
    )
    assert "withholds a part of the command" in _refused("replay", "record")
    assert hosts.fairlead("replay", "record", env={"MY_TOKEN": "other"}).returncode == 0
    shutil.rmtree("record")
    assert hosts.fairlead(*own, hosts.image(), "--", "echo", "--password", SECRET).returncode == 0
    assert "withholds a part of the command" in _refused("replay", "record")


def test_interrupted_replay_puts_the_results_back(work: Path) -> None:
    Path("sum.txt").write_text("precious\n")
    Path("in.txt").write_text("1")
    line = (*RUN, "--record", "record", "--result", "sum.txt", hosts.image(), "--", "sh", "-c", "touch waiting; sleep ${LONG:-0}; echo done > sum.txt")  # fmt: skip
    assert hosts.fairlead(*line).returncode == 0
    Path("waiting").unlink()
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "replay", "record"], env={**os.environ, "LONG": "60"}
    )
    end = time.monotonic() + 60
    while not Path("waiting").exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert Path("sum.txt.recorded").exists() and not Path("sum.txt").exists()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert Path("sum.txt").read_text() == "done\n" and not Path("sum.txt.recorded").exists()
    Path("sum.txt").rename("sum.txt.recorded")  # as SIGKILL leaves it
    assert "next:  mv" in _refused("replay", "record")


@pytest.mark.full
def test_training_is_repeated_to_the_same_weights(work: Path) -> None:
    hosts.image("tensorflow")
    line = (
        "train",
        "hepcnn",
        "-n",
        "2",
        "--train-samples",
        "300",
        "--epochs",
        "1",
        "--record",
        "record",
    )
    done = hosts.fairlead(*line, limit_s=500)
    assert "fairlead: record: " in done.stderr, done.stderr
    run = json.loads(Path("record/run.json").read_bytes())
    (weights,) = run["results"]
    assert weights["name"] == "weights" and f"sha256 {weights['sha256'][:16]}…" in done.stdout
    assert any("tensorflow" in library["path"] for library in run["ranks"]["libraries"])
    report = Path("fairlead-report/report.json").read_bytes()
    done = hosts.fairlead("replay", "record", limit_s=500)
    assert done.returncode == 0 and "1 result byte for byte" in done.stdout, (
        done.stdout + done.stderr
    )
    assert Path("fairlead-report/report.json").read_bytes() == report
