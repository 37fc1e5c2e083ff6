"""``fairlead serve`` with a real client: runs that a server starts, loses and finds again."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.system import browser, hosts
from tests.system.slurm import slurm

OFFERS = """
[run.ring]
title = "A <b>ring</b>"
command = ["run", "-n", "2", "mpi-base", "--", "python3", "-c", '''
import os, pathlib, sys
from mpi4py import MPI
w = MPI.COMM_WORLD
here = pathlib.Path(sys.argv[2])
if w.rank == 0:
    (here / "result.txt").write_text(sys.argv[1])
    (here / "page.html").write_text("<script>alert(1)</script>")
    (here / "hidden").write_text("not offered")
    (here / "link.txt").unlink(missing_ok=True)
    (here / "link.txt").symlink_to("/etc/passwd")
print(sys.argv[1], w.rank, "of", w.size, flush=True)
w.Barrier()
sys.exit(int(sys.argv[3]))
''', "{word}", ".", "{code}"]
results = ["*.txt", "*.html"]
[run.ring.parameters.word]
pattern = "[a-z<>/]+"
default = "hello"
[run.ring.parameters.code]
choices = [0, 3]
default = 0

[run.long]
command = ["run", "-n", "2", "mpi-base", "--", "python3", "-c", '''
import time
from mpi4py import MPI
print("begun", MPI.COMM_WORLD.rank, flush=True)
time.sleep(300)
''']

[run.limited]
hours = 0.001
command = ["run", "-n", "1", "mpi-base", "--", "sleep", "300"]
"""


@dataclass
class Server:
    """A server that was started, and its clients."""

    folder: Path
    process: subprocess.Popen[str]
    url: str

    def client(self, name: str, *words: str) -> httpx.Client:
        """A client with a new token."""
        made = hosts.fairlead("serve", "token", name, "--folder", self.folder, *words)
        assert made.returncode == 0, made.stderr
        return httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {made.stdout.strip()}"}, timeout=60
        )  # fmt: skip

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def served(folder: Path, *words: str | Path, env: dict[str, str] | None = None) -> Iterator[Server]:
    offers = folder.parent / "offers.toml"
    offers.write_text(OFFERS)
    listen = () if "--listen" in words else ("--listen", "127.0.0.1:0")
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "serve", "start", offers, "--folder", folder, *listen, *words],
        stdout=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url, "the server did not start"
        yield Server(folder, process, url)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(30)
        process.stdout.close()


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    hosts.image()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with served(tmp_path / "serve", "--at-once", "2") as one:
        yield one
        for lock in (one.folder / "runs").glob("*/lock"):
            (lock.parent / "cancel").touch()
        until(lambda: not processes(one.folder), 60)


def until(holds: Callable[[], Any], limit_s: float = 90) -> Any:
    end = time.monotonic() + limit_s
    while not (value := holds()):
        assert time.monotonic() < end, "it does not come to pass"
        time.sleep(0.1)
    return value


def processes(folder: Path) -> list[str]:
    """What runs for the runs below a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if f"{folder}/runs" in words:
                found.append(words)
    return found


def submit(client: httpx.Client, run: str, key: str = "", **parameters: Any) -> dict[str, Any]:
    answer = client.post(
        "/api/runs", json={"run": run, "parameters": parameters}, headers={"Idempotency-Key": key} if key else {}
    )  # fmt: skip
    assert answer.status_code in (200, 201), answer.text
    return dict(answer.json())


def state(client: httpx.Client, id: str) -> str:
    return str(client.get(f"/api/runs/{id}").raise_for_status().json()["state"])


def ended(client: httpx.Client, id: str) -> dict[str, Any]:
    until(lambda: state(client, id) not in ("queued", "running"))
    return dict(client.get(f"/api/runs/{id}").json())


def check(answer: httpx.Response) -> tuple[int, str]:
    (finding,) = answer.json()["findings"]
    assert finding["what"] and finding["remedy"], finding
    return answer.status_code, finding["check"]


def test_client_runs_what_is_offered_follows_it_and_repeats_its_record(
    server: Server, tmp_path: Path
) -> None:
    with server.client("alice") as alice, server.client("bob") as bob:
        id = submit(alice, "ring", word="hi</b>")["id"]
        text, start = "", 0
        while True:
            part = alice.get(f"/api/runs/{id}/log", params={"start": start, "wait": 20})
            text, start = text + part.text, int(part.headers["X-Next-Start"])
            if part.headers["X-State"] not in ("queued", "running"):
                break
        assert "proved on 2 ranks" in text and "hi</b> 0 of 2" in text and "hi</b> 1 of 2" in text
        run = ended(alice, id)
        assert (run["state"], run["exit_code"]) == ("done", 0)
        assert run["created"] <= run["started"] < run["ended"]
        names = [file["name"] for file in alice.get(f"/api/runs/{id}/files").json()]
        assert names == ["result.txt", "page.html"]
        page = alice.get(f"/api/runs/{id}/files/page.html")
        assert page.headers["content-disposition"].startswith("attachment")
        assert alice.get(f"/api/runs/{id}/files/result.txt").text == "hi</b>"
        for name in ("hidden", "link.txt", "../order.json", "..%2forder.json", "%2fetc%2fpasswd"):
            assert alice.get(f"/api/runs/{id}/files/{name}").status_code == 404, name
        # Nobody else learns that it is there.
        for path in ("", "/log", "/record", "/files", "/files/result.txt"):
            assert bob.get(f"/api/runs/{id}{path}").status_code == 404
        assert bob.post(f"/api/runs/{id}/cancel").status_code == 404
        assert bob.get("/api/runs").json() == []
        record = alice.get(f"/api/runs/{id}/record").raise_for_status().content
    with tarfile.open(fileobj=io.BytesIO(record)) as archive:
        archive.extractall(tmp_path)
    again = hosts.fairlead("replay", tmp_path / id)
    assert again.returncode == 0 and "same: exit code 0" in again.stdout, (
        again.stdout + again.stderr
    )


def test_run_that_fails_is_kept_with_its_code_and_one_without_end_with_its_limit(
    server: Server,
) -> None:
    with server.client("alice") as alice:
        failed, limited = submit(alice, "ring", code=3)["id"], submit(alice, "limited")["id"]
        assert ended(alice, failed)["exit_code"] == 3
        assert alice.get(f"/api/runs/{failed}/record").status_code == 200
        assert ended(alice, limited)["why"] == "time limit of 4 s"
        assert check(alice.post(f"/api/runs/{failed}/cancel")) == (409, "serve-over")
        assert [r["id"] for r in alice.get("/api/runs", params={"state": "failed"}).json()] == [
            limited, failed,
        ]  # fmt: skip


def test_only_tokens_that_hold_may_do_what_they_may(server: Server) -> None:
    nobody = httpx.Client(base_url=server.url)
    with nobody, server.client("alice") as alice, server.client("eve", "--read-only") as eve:
        for path in ("/api/offers", "/api/runs", "/api/runs/20261126-000000-000000-0000"):
            answer = nobody.get(path)
            assert check(answer) == (401, "serve-unauthorized")
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert check(nobody.post("/api/runs", json={"run": "ring"}))[0] == 401
        assert check(eve.post("/api/runs", json={"run": "ring"})) == (403, "serve-unauthorized")
        assert eve.get("/api/runs").json() == []
        assert check(alice.post("/api/runs", json={"run": "rign"})) == (422, "serve-not-found")
        wrong = alice.post(
            "/api/runs", json={"run": "ring", "parameters": {"word": "A", "code": 1}}
        )
        assert [f["check"] for f in wrong.json()["findings"]] == ["serve-parameter"] * 2
        for body in (b"", b"{", b"[]", b'{"run": 1}', b'{"run": "ring", "command": "sh"}', b"\xff"):
            answer = alice.post("/api/runs", content=body, headers={"Content-Type": "application/json"})  # fmt: skip
            assert answer.status_code in (400, 422) and answer.json()["findings"], body
        large = alice.post("/api/runs", content=b"a" * 70_000)
        assert check(large) == (413, "serve-request")
        assert check(alice.get("/api/nothing")) == (404, "serve-not-found")
        assert check(alice.delete("/api/runs")) == (405, "serve-not-found")
        assert alice.get("/api/runs").json() == []
        revoked = hosts.fairlead("serve", "revoke", "alice", "--folder", server.folder)
        assert revoked.returncode == 0 and check(alice.get("/api/runs"))[0] == 401
    # What others on this machine can see: no token on a command line.
    assert not any("fairlead_" in words for words in processes(server.folder))


def test_one_key_is_one_run_however_often_and_at_once_it_is_sent(server: Server) -> None:
    with server.client("alice") as alice, ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda _: submit(alice, "ring", key="k")["id"], range(16)))
        assert len(ids) == 1 and len(alice.get("/api/runs").json()) == 1
        other = alice.post(
            "/api/runs", json={"run": "ring", "parameters": {"word": "x"}}, headers={"Idempotency-Key": "k"}
        )  # fmt: skip
        assert check(other) == (409, "serve-key")
        with server.client("bob") as bob:  # a key is its client's own
            assert submit(bob, "ring", key="k")["id"] not in ids


def test_runs_outlive_a_killed_server_and_the_next_starts_those_that_wait(tmp_path: Path) -> None:
    folder = tmp_path / "serve"
    with served(folder) as one, one.client("alice") as alice:
        long = submit(alice, "long")["id"]
        waiting, dropped = submit(alice, "ring")["id"], submit(alice, "ring")["id"]
        until(lambda: "begun 1" in alice.get(f"/api/runs/{long}/log").text)
        assert (state(alice, long), state(alice, waiting)) == ("running", "queued")
        busy = hosts.fairlead(
            "serve", "start", tmp_path / "offers.toml", "--folder", folder, "--listen", "127.0.0.1:0"
        )  # fmt: skip
        assert busy.returncode == 2 and "another server uses this folder" in busy.stderr
        token = alice.headers["Authorization"]
        one.end(signal.SIGKILL)
    assert any(long in words for words in processes(folder))
    with served(folder) as two:
        alice = httpx.Client(base_url=two.url, headers={"Authorization": token}, timeout=60)
        with alice:
            assert state(alice, long) == "running"
            assert alice.post(f"/api/runs/{dropped}/cancel").json()["state"] == "cancelled"
            assert alice.post(f"/api/runs/{long}/cancel").status_code == 202
            assert ended(alice, long)["state"] == "cancelled"
            assert ended(alice, waiting)["state"] == "done"
            assert state(alice, dropped) == "cancelled"
            # What watches a run is killed: the run does not go on unwatched, and is not called done.
            lost = submit(alice, "long")["id"]
            until(lambda: "begun 1" in alice.get(f"/api/runs/{lost}/log").text)
            runner = subprocess.run(
                ["pgrep", "-f", f"fairlead.serve.runner .*{lost}"], capture_output=True, text=True, check=True
            )  # fmt: skip
            os.kill(int(runner.stdout.split()[0]), signal.SIGKILL)
            until(lambda: state(alice, lost) == "lost")
            until(lambda: not any(lost in words for words in processes(folder)))


def test_others_on_the_machine_and_on_the_network_are_kept_out(tmp_path: Path) -> None:
    folder, socket = tmp_path / "serve", tmp_path / "socket"
    plain = hosts.fairlead(
        "serve", "start", hosts.ROOT / "examples/serve/offers.toml", "--folder", folder, "--listen", "0.0.0.0:0"
    )  # fmt: skip
    assert plain.returncode == 2 and "without encryption" in plain.stderr
    with served(folder, "--listen", f"unix:{socket}") as one:
        assert one.url == f"unix:{socket}"
        transport = httpx.HTTPTransport(uds=str(socket))
        with httpx.Client(base_url="http://here", transport=transport) as client:
            assert client.get("/api/runs").status_code == 401
        for (
            path
        ) in tmp_path.parents:  # pytest's folders are its user's own: they would keep anybody out
            path.chmod(path.stat().st_mode | 0o011)
        tmp_path.chmod(0o755)
        other = ("setpriv", "--reuid=20001", "--regid=20001", "--clear-groups")
        curl = ("curl", "-sS", "--max-time", "5", "--unix-socket", socket, "http://here/")
        assert subprocess.run(curl, capture_output=True, check=False).returncode == 0
        assert subprocess.run((*other, *curl), capture_output=True, check=False).returncode == 7
        listed = subprocess.run((*other, "ls", folder), capture_output=True, text=True, check=False)
        assert listed.returncode != 0 and "Permission denied" in listed.stderr
    assert not socket.exists()
    folder.chmod(0o755)
    opened = hosts.fairlead("serve", "tokens", "--folder", folder)
    assert opened.returncode == 2 and "others may read or change" in opened.stderr


def test_certificate_protects_what_crosses_a_network(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-keyout", key, "-out", certificate, "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    words = ("--listen", "0.0.0.0:0", "--certificate", certificate, "--certificate-key", key)
    with served(tmp_path / "serve", *words) as one:
        assert one.url.startswith("https://")
        port = one.url.rpartition(":")[2]
        import ssl

        context = ssl.create_default_context(cafile=str(certificate))
        answer = httpx.get(f"https://127.0.0.1:{port}/api/runs", verify=context)
        assert answer.status_code == 401
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{port}/api/runs")


@pytest.mark.skipif(browser.found() is None, reason="there is no Chromium on PATH")
def test_page_shows_a_clients_runs_and_starts_one(server: Server) -> None:
    with server.client("alice") as alice, browser.page() as tab:
        tab.open(server.url)
        assert tab.evaluate("document.querySelector('#inside').hidden") is True
        token = alice.headers["Authorization"].removeprefix("Bearer ")

        def shown(selector: str) -> str:
            return str(tab.evaluate(f"document.querySelector('{selector}').innerText"))

        def enter(text: str) -> None:
            tab.evaluate(f"at('token').value = {json.dumps(text)}; at('enter').requestSubmit()")

        enter("fairlead_wrong")
        until(lambda: "no valid token" in shown("#errors"))
        tab.complaints.clear()  # the refused request
        enter(token)
        until(lambda: "0 running" in shown("#status"))
        assert tab.evaluate("at('enter').offsetParent") is None
        assert "<b>ring</b>" in shown("#offer")  # a text, not a part of the page
        tab.evaluate("document.querySelector('[name=word]').value = 'page'; at('submit').requestSubmit()")  # fmt: skip
        until(lambda: "page 1 of 2" in shown("#log") and "done" in shown("#runs"))
        until(lambda: "run record" in shown("#links") and "result.txt" in shown("#links"))
        assert not tab.complaints and shown("#errors") == ""
        assert all(url.startswith((server.url, "about:")) for url in tab.requests)
        tab.evaluate("at('leave').click()")
        assert tab.evaluate("sessionStorage.getItem('token')") is None
        (run,) = alice.get("/api/runs").json()
        assert run["parameters"] == {"word": "page", "code": 0}


def test_example_client_follows_a_run_and_ends_as_it_did(server: Server) -> None:
    with server.client("alice") as alice:
        token = alice.headers["Authorization"].removeprefix("Bearer ")
    words = [sys.executable, hosts.ROOT / "examples/serve/client.py", server.url, "ring"]
    for given, code, text in (
        (("word=good",), 0, "good 1 of 2"),
        (("code=3",), 3, "hello 1 of 2"),
        (("code=4",), 1, "invalid value of `code`: 4"),
    ):
        done = hosts.program(*words, *given, env={"FAIRLEAD_TOKEN": token})
        assert (done.returncode, text in done.stdout + done.stderr) == (code, True), (
            done.stdout + done.stderr
        )


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm here")
def test_run_takes_nodes_from_the_scheduler_and_gives_them_back(tmp_path: Path) -> None:
    with (
        slurm() as cluster,
        served(tmp_path / "serve", env=cluster.environ) as one,
        one.client("alice") as alice,
    ):
        id = submit(alice, "ring")["id"]
        run = ended(alice, id)
        text = alice.get(f"/api/runs/{id}/log").text
        assert run["state"] == "done" and "asking slurm for nodes" in text, text
        cancelled = submit(alice, "long")["id"]
        until(lambda: "begun 1" in alice.get(f"/api/runs/{cancelled}/log").text)
        assert not cluster.empty()
        alice.post(f"/api/runs/{cancelled}/cancel")
        assert ended(alice, cancelled)["state"] == "cancelled"
        until(cluster.empty, 30)
