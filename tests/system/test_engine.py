"""Images into the store of a real ``podman system service``, and from there to a registry."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts
from tests.system.engines import Service, service
from tests.system.registries import PASSWORD, LoopbackRegistry, login, registry

NAME = "localhost/mpi-base:1"


@pytest.fixture(scope="module")
def shore() -> Iterator[LoopbackRegistry]:
    with registry(password=True) as running:
        yield running


@pytest.fixture(scope="module")
def engine(shore: LoopbackRegistry) -> Iterator[Service]:
    with service(plain_http=shore.host) as running:
        yield running


@pytest.fixture(scope="module")
def loaded(engine: Service) -> Any:
    """mpi-base in the engine's store; the answer of ``fairlead push --json``."""
    hosts.image("mpi-base")
    return done("push", "mpi-base", f"docker-daemon:{NAME}", env=engine.environ)


def done(*words: str, env: dict[str, str]) -> Any:
    ended = hosts.fairlead(*words, "--json", env=env, limit_s=200)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


def refusal(*words: str, env: dict[str, str], code: int = 1) -> dict[str, str]:
    ended = hosts.fairlead(*words, "--json", env=env)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr and PASSWORD not in ended.stdout + ended.stderr
    (finding,) = json.loads(ended.stdout)["findings"]
    assert isinstance(finding, dict) and finding["remedy"]
    return finding


def test_push_to_an_engine_loads_tags_and_runs_there(engine: Service, loaded: Any) -> None:
    assert loaded["bytes_sent"] > 50_000_000 and loaded["engine"]["image"] == NAME
    assert loaded["engine"]["name"].startswith("Podman")
    said = engine.podman(
        "run", "--rm", "--network=host", NAME, "python3", "-c",
        "import mpi4py, os; print(mpi4py.__version__, os.environ['PYTHONNOUSERSITE'])",
    )  # fmt: skip
    assert said.split()[1] == "1"


def test_push_to_an_engine_again_sends_nothing(engine: Service, loaded: Any) -> None:
    again = done("push", "mpi-base", f"docker-daemon:{NAME}", env=engine.environ)
    assert again["bytes_sent"] == 0
    assert again["engine"]["id"] == loaded["engine"]["id"]


def test_push_to_an_engine_dry_run_loads_nothing(engine: Service) -> None:
    name = "localhost/never:1"
    output = done("push", "mpi-base", f"docker-daemon:{name}", "--dry-run", env=engine.environ)
    assert output["engine"]["image"] == name and output["bytes_sent"] == 0
    assert "never" not in engine.podman("images")


@pytest.mark.full
def test_push_by_an_engine_reaches_a_registry_with_a_login(
    engine: Service, loaded: Any, shore: LoopbackRegistry, tmp_path: Path
) -> None:
    reference = f"docker://{shore.host}/ml/by-engine:1"
    env = {**engine.environ, **login(tmp_path, shore.host)}
    sent = done("push", "mpi-base", reference, "--engine", env=env)
    assert sent["digest"].startswith("sha256:") and sent["engine"]["image"].endswith("by-engine:1")
    (manifest,) = [
        json.loads(blob.read_bytes())
        for blob in shore.blobs()
        if blob.parent.name == sent["digest"].partition(":")[2]
    ]
    assert len(manifest["layers"]) == 3
    assert manifest["config"]["digest"].endswith(sent["engine"]["id"].removeprefix("sha256:"))


def test_push_by_an_engine_without_a_login_names_its_refusal(
    engine: Service, loaded: Any, shore: LoopbackRegistry
) -> None:
    env = {**engine.environ, "XDG_RUNTIME_DIR": "/nonexistent"}
    finding = refusal("push", "mpi-base", f"docker://{shore.host}/ml/no:1", "--engine", env=env)
    assert finding["check"] == "engine-refused" and "auth" in finding["why"]


def test_push_to_a_missing_socket_names_the_command_that_starts_one(tmp_path: Path) -> None:
    env = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    finding = refusal("push", "mpi-base", f"docker-daemon:{NAME}", env=env)
    assert finding["check"] == "engine-silent" and "podman system service" in finding["remedy"]
    assert "DOCKER_HOST" in finding["where"]


def test_push_to_a_socket_that_hangs_up_is_reported() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/s"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(place)
            listener.listen()

            def hang_up() -> None:
                while True:
                    try:
                        listener.accept()[0].close()
                    except OSError:
                        return

            thread = threading.Thread(target=hang_up, daemon=True)
            thread.start()
            env = {"DOCKER_HOST": f"unix://{place}"}
            finding = refusal("push", "mpi-base", f"docker-daemon:{NAME}", env=env)
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
    assert finding["check"] == "engine-silent"


@pytest.mark.parametrize(
    ("words", "check"),
    [
        (("docker-daemon:localhost/a@sha256:" + "0" * 64,), "reference"),
        (("docker-daemon:Not/Lower:1",), "reference"),
        (("oras://localhost/a:1", "--engine"), "push-engine"),
        (("docker-daemon:localhost/a:1", "--insecure"), "push-engine"),
    ],
)
def test_push_to_an_engine_of_what_cannot_be_is_bad_input(
    words: tuple[str, ...], check: str
) -> None:
    assert refusal("push", "mpi-base", *words, env={}, code=2)["check"] == check


def test_push_to_an_engine_that_dies_is_reported() -> None:
    hosts.image("mpi-base")
    with service() as running:
        running.process.kill()
        running.process.wait(10)
        finding = refusal("push", "mpi-base", f"docker-daemon:{NAME}", env=running.environ)
    assert finding["check"] == "engine-silent" and "refused" in finding["why"]
