"""``fairlead push`` and ``fairlead pull`` with a real registry, Apptainer and Podman."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts
from tests.system.podman import podman
from tests.system.registries import (
    PASSWORD,
    LoopbackRegistry,
    login,
    proxy,
    registry,
    small_layout,
    token_server,
)

from fairlead.image.tree_digest import scan_folder, tree_sha256
from fairlead_build.cache.store import Cache
from fairlead_build.formats.images import read_entry
from fairlead_build.registry.client import Client
from fairlead_build.registry.reference import parse_reference


@pytest.fixture(scope="module")
def shore() -> Iterator[LoopbackRegistry]:
    with registry() as running:
        yield running


@pytest.fixture(scope="module")
def sif() -> Path:
    """The SIF of mpi-base, as it was built."""
    return hosts.image("mpi-base")


@pytest.fixture(scope="module")
def pushed(shore: LoopbackRegistry, sif: Path) -> dict[str, Any]:
    """mpi-base, pushed; the answer of ``fairlead push --json``."""
    return done("push", "mpi-base", f"docker://{shore.host}/ml/mpi-base:1", limit_s=300)


@pytest.fixture
def empty(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that has no image."""
    return hosts.new_cache(tmp_path / "cache")


def done(*words: str | Path, env: dict[str, str] | None = None, limit_s: float = 120) -> Any:
    """The JSON answer of ``fairlead WORDS``, which must end well."""
    ended = hosts.fairlead(*words, "--json", env=env, limit_s=limit_s)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


def refusal(*words: str | Path, env: dict[str, str] | None = None, code: int = 1) -> dict[str, str]:
    """The one finding of ``fairlead WORDS``, which must fail with ``code``."""
    ended = hosts.fairlead(*words, "--json", env=env)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    (finding,) = json.loads(ended.stdout)["findings"]
    assert isinstance(finding, dict)
    return finding


def sha256(path: Path | str) -> str:
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- push --------------------------------------------------------------------------------------


def test_push_again_sends_nothing_and_another_repository_mounts(
    shore: LoopbackRegistry, pushed: dict[str, Any]
) -> None:
    assert pushed["bytes_sent"] == sum(p["bytes"] for p in pushed["parts"])
    assert pushed["sif"]["reference"] == f"oras://{shore.host}/ml/mpi-base:1-sif"
    assert pushed["digest_before"] is None
    again = done("push", "mpi-base", f"docker://{shore.host}/ml/mpi-base:1")
    assert again["bytes_sent"] == 0 and again["digest"] == pushed["digest"]
    assert again["digest_before"] == pushed["digest"]

    planned = done("push", "mpi-base", f"docker://{shore.host}/ml/other:2", "--dry-run")
    assert {p["state"] for p in planned["parts"]} == {"to send"}
    assert Client(parse_reference(f"docker://{shore.host}/ml/other:2")).has_manifest("2") == ""
    moved = done("push", "mpi-base", f"docker://{shore.host}/ml/other:2")
    large = [p for p in moved["parts"] if p["bytes"] > 100]
    assert {p["state"] for p in large} == {"mounted"} and moved["bytes_sent"] < 100
    assert moved["digest"] == pushed["digest"]


def test_push_prints_the_reference_with_its_digest(
    shore: LoopbackRegistry, pushed: dict[str, Any]
) -> None:
    ended = hosts.fairlead("push", "mpi-base", f"docker://{shore.host}/ml/mpi-base:1")
    first, second = ended.stdout.splitlines()
    assert first == f"docker://{shore.host}/ml/mpi-base:1@{pushed['digest']}"
    assert second == f"{pushed['sif']['reference']}@{pushed['sif']['digest']}"
    assert "unchanged" in ended.stderr


@pytest.mark.parametrize(
    ("image", "reference", "check"),
    [
        ("mpi-base", "docker://HOST/a@sha256:" + "0" * 64, "reference"),
        ("mpi-base", "HOST/a:1", "reference"),
        ("no-such-image", "docker://HOST/a:1", "image"),
        ("examples", "docker://HOST/a:1", "push-format"),
    ],
)
def test_push_of_what_cannot_be_is_bad_input(
    shore: LoopbackRegistry, image: str, reference: str, check: str, sif: Path
) -> None:
    assert refusal("push", image, reference.replace("HOST", shore.host), code=2)["check"] == check


def test_registry_that_refuses_is_known_before_anything_is_made(sif: Path, tmp_path: Path) -> None:
    """By a password, by rights that end at reading, and by nobody there."""
    environ = login(tmp_path, "127.0.0.1:1")
    with registry(password=True) as closed:
        for host in (closed.host, "127.0.0.1:1"):
            ended = hosts.fairlead("push", sif, f"docker://{host}/ml/x:1", env=environ)
            assert ended.returncode == 1 and "error[registry-" in ended.stderr, ended.stderr
            assert "OCI layers" not in ended.stderr and "hash the SIF" not in ended.stderr
        assert not closed.blobs()
    with (
        token_server(tmp_path, rights=("pull",)) as tokens,
        registry(tokens=tokens) as readable,
    ):
        environ = login(tmp_path, readable.host)
        ended = hosts.fairlead("push", sif, f"docker://{readable.host}/ml/x:1", env=environ)
        assert ended.returncode == 1 and "error[registry-" in ended.stderr, ended.stderr
        assert "to push images" in ended.stderr
        assert "OCI layers" not in ended.stderr and "hash the SIF" not in ended.stderr


def test_asking_for_the_right_to_push_leaves_nothing_behind(shore: LoopbackRegistry) -> None:
    before = list(shore.blobs())
    Client(parse_reference(f"docker://{shore.host}/ml/asked:1")).check_push()
    assert list(shore.blobs()) == before and shore.requests("DELETE", "/uploads/")


# --- others pull what we pushed ----------------------------------------------------------------


def test_apptainer_pulls_the_sif_bit_identical_by_tag_and_by_digest(
    shore: LoopbackRegistry, pushed: dict[str, Any], sif: Path, tmp_path: Path
) -> None:
    place = f"oras://{shore.host}/ml/mpi-base"
    for number, name in enumerate((":1-sif", f"@{pushed['sif']['digest']}")):
        apptainer_pull(tmp_path / f"{number}.sif", place + name, tmp_path)
        assert sha256(tmp_path / f"{number}.sif") == sha256(sif)


@pytest.mark.full
def test_apptainer_pulls_the_layers_and_runs_them(
    shore: LoopbackRegistry, pushed: dict[str, Any], sif: Path, tmp_path: Path
) -> None:
    place = f"docker://{shore.host}/ml/mpi-base@{pushed['digest']}"
    apptainer_pull(tmp_path / "layers.sif", place, tmp_path)
    argv = [hosts.apptainer(), "exec", "--userns", "--cleanenv", tmp_path / "layers.sif"]
    said = subprocess.run([*argv, *PROBE], capture_output=True, text=True, timeout=60)
    assert said.stdout == "/opt/python/bin/fairlead 4.1 MPICH\n", said.stderr


# Where fairlead is, mpi4py's version, and whose MPI it finds.
PROBE = ["sh", "-c", "echo $(which fairlead) $(python3 -c \"import mpi4py; print(mpi4py.__version__[:3])\") $(/opt/mpich/bin/mpichversion | head -1 | cut -c1-5)"]  # fmt: skip


def apptainer_pull(target: Path, place: str, work: Path) -> None:
    env = {
        **os.environ,
        "APPTAINER_CACHEDIR": str(work / "apptainer"),
        "APPTAINER_TMPDIR": str(work),
    }
    argv = [hosts.apptainer(), "pull", "--no-https", target, place]
    ended = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=180)
    assert ended.returncode == 0, ended.stderr


def test_podman_pulls_by_tag_and_by_digest_the_same_tree_and_runs_it(
    shore: LoopbackRegistry, pushed: dict[str, Any], sif: Path
) -> None:
    with podman() as engine:
        name = f"{shore.host}/ml/mpi-base"
        engine("pull", "--quiet", "--tls-verify=false", f"{name}:1")
        engine("pull", "--quiet", "--tls-verify=false", f"{name}@{pushed['digest']}")
        if os.getuid() == 0:  # only root can mount the store to look at it
            tree = scan_folder(Path(engine("image", "mount", f"{name}:1").strip()))
            entry = read_entry(Cache.default(), "mpi-base")
            assert entry is not None and tree_sha256(tree) == entry.tree_sha256
            engine("image", "unmount", f"{name}:1")
        digest = engine("image", "inspect", "--format", "{{.Digest}}", f"{name}:1").strip()
        assert digest == pushed["digest"]
        said = engine("run", "--rm", "--network=none", f"{name}:1", *PROBE)
        assert said == "/opt/python/bin/fairlead 4.1 MPICH\n"


# --- pull --------------------------------------------------------------------------------------


def test_pull_brings_the_builders_sif_by_tag_and_by_digest(
    shore: LoopbackRegistry,
    pushed: dict[str, Any],
    sif: Path,
    empty: dict[str, str],
    tmp_path: Path,
) -> None:
    place = f"docker://{shore.host}/ml/mpi-base"
    planned = done("pull", f"{place}:1", "--dry-run", env=empty)
    assert planned["bytes_to_transfer"] == sif.stat().st_size and planned["image"] is None
    assert not list(Path(empty["XDG_CACHE_HOME"]).rglob("*.sif"))

    output = done("pull", f"{place}:1", "-o", tmp_path / "mine.sif", env=empty)
    assert output["digest"] == pushed["digest"] and output["source"] == "sif"
    assert output["bytes_transferred"] == sif.stat().st_size
    assert sha256(tmp_path / "mine.sif") == sha256(sif) == output["image"]["sif_sha256"]
    assert sha256(output["image"]["path"]) == sha256(sif)

    for name in (f"{place}@{pushed['digest']}", pushed["sif"]["reference"]):
        again = done("pull", name, env=empty)
        assert again["cached"] and again["image"]["path"] == output["image"]["path"]

    rotten = Path(output["image"]["path"])
    rotten.write_bytes(rotten.read_bytes()[:-1] + b"?")
    assert not done("pull", f"{place}:1", env=empty)["cached"]
    assert sha256(rotten) == sha256(sif)


def test_pulled_reference_is_the_name_of_an_image(
    shore: LoopbackRegistry, pushed: dict[str, Any], sif: Path, empty: dict[str, str]
) -> None:
    place = f"docker://{shore.host}/ml/mpi-base"
    before = refusal("inspect", f"{place}:1", env=empty, code=2)
    assert before["check"] == "not-pulled" and before["remedy"] == f"fairlead pull {place}:1"
    done("pull", f"{place}:1", env=empty)
    for name in (f"{place}:1", f"{place}@{pushed['digest']}", f"{place}:1@{pushed['digest']}"):
        image = done("inspect", name, env=empty)["image"]
        assert image["record"]["recipe"] == "mpi-base" and image["looked"]
    ran = hosts.fairlead("run", "-n", "2", f"{place}:1", "--", "python3", "-c",
                         "from mpi4py import MPI; print(MPI.COMM_WORLD.size)", env=empty)  # fmt: skip
    assert ran.returncode == 0 and ran.stdout.split() == ["2", "2"], ran.stderr


@pytest.mark.full
def test_tag_that_moves_is_reported_and_the_digest_stays_what_it_was(
    shore: LoopbackRegistry, pushed: dict[str, Any], empty: dict[str, str]
) -> None:
    place = f"docker://{shore.host}/ml/moving"
    first = done("push", "mpi-base", f"{place}:1")["digest"]
    before = done("pull", f"{place}:1", env=empty)
    assert before["digest"] == first and before["digest_before"] is None and not before["moved"]
    assert not done("pull", f"{place}:1", env=empty)["moved"]
    hosts.image("mpi-base:openmpi")
    second = done("push", "mpi-base:openmpi", f"{place}:1", limit_s=300)["digest"]
    assert second != first

    def recipe(name: str) -> str:
        value: str = done("inspect", name, env=empty)["image"]["record"]["recipe"]
        return value

    assert recipe(f"{place}:1") == "mpi-base", "commands ask no registry"
    for words in (("--dry-run",), ()):
        ended = hosts.fairlead("pull", f"{place}:1", *words, env=empty)
        assert ended.returncode == 0 and "warning[tag-moved]" in ended.stderr, ended.stderr
        assert first in ended.stderr and second in ended.stderr
    assert recipe(f"{place}:1") == "mpi-base:openmpi"
    assert recipe(f"{place}@{first}") == recipe(f"{place}:1@{first}") == "mpi-base"
    again = done("pull", f"{place}@{first}", env=empty)
    assert again["cached"] and not again["moved"] and again["digest"] == first
    assert "tag-moved" not in hosts.fairlead("pull", f"{place}:1", env=empty).stderr


def test_pull_killed_goes_on_from_what_had_come(
    shore: LoopbackRegistry, pushed: dict[str, Any], sif: Path, empty: dict[str, str]
) -> None:
    size = sif.stat().st_size
    with proxy(shore.host, slow=True) as between:
        place = f"docker://{between.host}/ml/mpi-base:1"
        argv = [sys.executable, "-m", "fairlead", "pull", place]
        victim = subprocess.Popen(argv, env={**os.environ, **empty}, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while between.sent < 5_000_000:
            assert time.monotonic() < deadline and victim.poll() is None
            time.sleep(0.02)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    cache = Path(empty["XDG_CACHE_HOME"])
    assert not list(cache.rglob("*.sif"))
    (partial,) = cache.rglob("work/*.partial")
    kept = partial.stat().st_size
    assert 3_000_000 < kept < size

    output = done("pull", place.replace(between.host, shore.host), env=empty)
    assert output["bytes_transferred"] == size - kept
    assert sha256(output["image"]["path"]) == sha256(sif) and not partial.exists()


def test_pull_through_a_connection_that_is_cut_brings_the_same_bits(
    shore: LoopbackRegistry, pushed: dict[str, Any], sif: Path, empty: dict[str, str]
) -> None:
    cuts = [1000, *[20_000_000] * 3]
    with proxy(shore.host, cut_after=cuts) as between:
        output = done("pull", f"docker://{between.host}/ml/mpi-base:1", env=empty)
        assert between.connections > 3 and between.sent < 1.2 * sif.stat().st_size
    assert sha256(output["image"]["path"]) == sha256(sif)


def test_pull_with_a_byte_flipped_on_the_way_leaves_no_image(
    shore: LoopbackRegistry, pushed: dict[str, Any], empty: dict[str, str]
) -> None:
    with proxy(shore.host, flip=40_000_000) as between:
        place = f"docker://{between.host}/ml/mpi-base:1"
        assert refusal("pull", place, env=empty)["check"] == "registry-digest"
        assert refusal("inspect", place, env=empty, code=2)["check"] == "not-pulled"
    assert not list(Path(empty["XDG_CACHE_HOME"]).rglob("*.sif"))


def test_two_pulls_at_once_transfer_once(
    shore: LoopbackRegistry, pushed: dict[str, Any], sif: Path, empty: dict[str, str]
) -> None:
    argv = [sys.executable, "-m", "fairlead", "pull", "--json"]
    with proxy(shore.host) as between:
        place = f"docker://{between.host}/ml/mpi-base:1"
        both = [
            subprocess.Popen([*argv, place], env={**os.environ, **empty}, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL)
            for _ in range(2)
        ]  # fmt: skip
        answers = [json.loads(process.communicate(timeout=120)[0]) for process in both]
        assert between.sent < 1.1 * sif.stat().st_size
    assert answers[0]["image"] == answers[1]["image"]


def test_pull_of_layers_without_their_sif_says_so(
    shore: LoopbackRegistry, pushed: dict[str, Any], empty: dict[str, str], tmp_path: Path
) -> None:
    """Somebody copies the image with a tool that knows nothing of the SIF beside it."""
    argv = ["skopeo", "copy", "--src-tls-verify=false", "--dest-tls-verify=false",
            f"docker://{shore.host}/ml/mpi-base:1"]  # fmt: skip
    with registry() as other:
        target = f"docker://{other.host}/copied/mpi-base:1"
        subprocess.run([*argv, target], check=True, capture_output=True)
        said = refusal("pull", target, env=empty)
    assert said["check"] == "sif-missing" and f"--layers {target}" in said["remedy"]


@pytest.mark.full
def test_pull_onto_a_full_disk_says_so_and_keeps_nothing_half_named(
    shore: LoopbackRegistry, pushed: dict[str, Any], sif: Path, tmp_path: Path
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can mount a small file system")
    place = f"docker://{shore.host}/ml/mpi-base:1"
    room = sif.stat().st_size // 1_000_000 + 30
    script = f"""
mount -t tmpfs -o size={room}m none '{tmp_path}' || exit 77
( while ! ls '{tmp_path}'/fairlead/work/*.partial; do sleep 0.02; done
  head -c 85000000 /dev/zero > '{tmp_path}/ballast' ) >/dev/null 2>&1 &
'{sys.executable}' -m fairlead pull '{place}' --json
code=$?
find '{tmp_path}' -name '*.sif' >&2
exit $code
"""
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    with proxy(shore.host, slow=True) as between:
        script = script.replace(shore.host, between.host)
        argv = ["unshare", "--mount", "sh", "-c", script]
        ended = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    (finding,) = json.loads(ended.stdout)["findings"]
    assert finding["check"] == "no-space" and "XDG_CACHE_HOME" in finding["remedy"]
    assert ".sif" not in ended.stderr


# --- images of others --------------------------------------------------------------------------


CONTAINERFILE = """
FROM {base}
ENV CREW="bosun and mate" OMP_NUM_THREADS=3
COPY hello.py /opt/app/hello.py
RUN mkdir /opt/app/log && rm /opt/mpich/bin/mpichversion
LABEL org.example.team=deck
WORKDIR /opt/app
"""
HELLO = """
import os
from mpi4py import MPI
print(MPI.COMM_WORLD.Get_size(), os.environ["CREW"], os.environ["OMP_NUM_THREADS"])
"""


@pytest.mark.full
def test_image_that_podman_built_on_ours_is_pulled_inspected_and_run(
    shore: LoopbackRegistry, pushed: dict[str, Any], empty: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "hello.py").write_text(HELLO)
    base = f"{shore.host}/ml/mpi-base:1"
    (tmp_path / "Containerfile").write_text(CONTAINERFILE.format(base=base))
    place = f"{shore.host}/deck/hello:2"
    with podman() as engine:
        engine("build", "--tls-verify=false", "--isolation=chroot", "-t", place, tmp_path)
        engine("push", "--quiet", "--tls-verify=false", "--format=v2s2", place)
    output = done("pull", f"docker://{place}", env=empty)
    assert output["source"] == "layers" and output["bytes_transferred"] > 50_000_000
    again = done("pull", f"docker://{place}", env=empty)
    assert again["cached"] and again["image"] == output["image"]

    image = done("inspect", f"docker://{place}", env=empty)["image"]
    assert image["looked"] and [mpi["vendor"] for mpi in image["facts"]["mpis"]] == ["MPICH"]
    ran = hosts.fairlead("run", "-n", "2", f"docker://{place}", "--", "python3",
                         "/opt/app/hello.py", env=empty)  # fmt: skip
    assert ran.stdout.splitlines() == ["2 bosun and mate 3"] * 2, ran.stdout + ran.stderr
    argv = [hosts.apptainer(), "exec", "--userns", output["image"]["path"], "ls", "/opt/mpich/bin"]
    assert "mpichversion" not in subprocess.run(argv, capture_output=True, text=True).stdout


def test_folder_of_an_oci_layout_is_an_image_and_converted_once(
    empty: dict[str, str], tmp_path: Path
) -> None:
    layout = tmp_path / "layout"
    small_layout(layout)
    first = done("inspect", layout, env=empty)["image"]
    assert first["format"] == "sif" and first["looked"]
    made = Path(first["path"])
    before = made.stat().st_mtime_ns
    assert done("inspect", layout, env=empty)["image"] == first
    assert made.stat().st_mtime_ns == before
    made.unlink()
    blob = max((layout / "blobs/sha256").iterdir(), key=lambda p: p.stat().st_size)
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    assert blob.name in str(refusal("inspect", layout, env=empty, code=2))
    assert not made.exists()


# --- several platforms -------------------------------------------------------------------------


def test_pull_of_an_index_takes_this_machines_variant_or_lists_those_there_are(
    shore: LoopbackRegistry, pushed: dict[str, Any], sif: Path, empty: dict[str, str]
) -> None:
    own = {"architecture": "amd64", "os": "linux"}
    foreign = {"architecture": "s390x", "os": "linux"}
    attestation = {"architecture": "unknown", "os": "unknown"}
    client = Client(parse_reference(f"docker://{shore.host}/ml/mpi-base:many"))
    manifest = client.manifest(pushed["digest"])
    item = {"mediaType": manifest.media_type, "digest": manifest.digest, "size": len(manifest.data)}

    def index(tag: str, *platforms: dict[str, str]) -> str:
        kind = "application/vnd.oci.image.index.v1+json"
        value = {"schemaVersion": 2, "mediaType": kind,
                 "manifests": [{**item, "platform": p} for p in platforms]}  # fmt: skip
        client.push_manifest(json.dumps(value).encode(), kind, tag)
        return f"docker://{shore.host}/ml/mpi-base:{tag}"

    output = done("pull", index("many", foreign, attestation, own), env=empty)
    assert output["digest"] == pushed["digest"]
    assert sha256(output["image"]["path"]) == sha256(sif)
    said = refusal("pull", index("foreign", foreign, attestation), env=empty, code=2)
    assert said["check"] == "platform" and "linux/s390x" in said["why"]
    assert "unknown" not in said["why"]


# --- secrets -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pytest.param("password", marks=pytest.mark.full), "tokens"])
def test_password_shows_nowhere(
    kind: str, sif: Path, empty: dict[str, str], tmp_path: Path
) -> None:
    """Everything that a login touches, right and wrong; all that is printed, and every argument."""
    with (
        token_server(tmp_path / "tokens") as tokens,
        registry(
            password=kind == "password", tokens=tokens if kind == "tokens" else None
        ) as running,
    ):
        place = f"oras://{running.host}/ml/mpi-base:1"
        right = {**empty, **login(tmp_path / "right", running.host), **CHATTY}
        wrong = {
            **empty,
            **login(tmp_path / "wrong", running.host, password="wrong-pw-18"),
            **CHATTY,
        }
        nobody = {**empty, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), **CHATTY}
        printed = ""
        for env, code, more in ((wrong, 1, ["--json"]), (nobody, 1, []), (right, 0, ["--json"])):
            for verb in (("push", sif, place), ("pull", place)):
                ended, argued = watched(*verb, *more, env=env)
                assert ended.returncode == code, ended.stdout + ended.stderr
                printed += ended.stdout + ended.stderr + argued
        assert "registry-login" in printed and f"-m fairlead push {sif}" in printed
        kept = [p for p in Path(empty["XDG_CACHE_HOME"]).rglob("*") if p.is_file()]
        small = "".join(p.read_text("utf-8", "replace") for p in kept if p.stat().st_size < 1 << 20)
        for secret in secrets_of(PASSWORD, "wrong-pw-18"):
            assert secret not in printed and secret not in small


# Whoever looks for a fault turns on all that can be turned on.
CHATTY = {"PYTHONDEVMODE": "1", "DEBUG": "1", "PYTHONWARNINGS": "default"}


def secrets_of(*passwords: str) -> Iterator[str]:
    import base64

    for password in passwords:
        yield password
        yield base64.b64encode(f"bosun:{password}".encode()).decode()


def watched(
    *words: str | Path, env: dict[str, str]
) -> tuple[subprocess.CompletedProcess[str], str]:
    """The end of ``fairlead WORDS``, and the command lines of all processes meanwhile."""
    argv = [sys.executable, "-m", "fairlead", *map(str, words)]
    process = subprocess.Popen(argv, env={**os.environ, **env}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    argued = set()
    while process.poll() is None:
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                argued.add(file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
            except OSError:
                continue
        time.sleep(0.05)
    out, err = process.communicate()
    return subprocess.CompletedProcess(argv, process.returncode, out, err), "\n".join(argued)
