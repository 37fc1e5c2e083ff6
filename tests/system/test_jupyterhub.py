"""A real JupyterHub with batchspawner on a real Slurm, configured by root's export: servers are jobs of another user,
kernels have ranks.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.system import hosts, notebooks, slurm
from tests.system.slurm import waited
from tests.system.test_export_users import Export
from tests.system.test_user import User, user

from fairlead.base.paths import cache_dir

__all__ = ["user"]  # a fixture

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm here"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm brings the proxy of JupyterHub"),
]
_HUB = """
c = get_config()
load_subconfig({export!r})
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api}"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.services = [{{"name": "tests", "api_token": {token!r}}}]
c.JupyterHub.load_roles = [
    {{"name": "tests", "services": ["tests"], "scopes": ["admin:users", "admin:servers", "access:servers"]}}
]
# As sudo, which this machine may not have.
c.SlurmSpawner.exec_prefix = "setpriv --reuid={uid} --regid={uid} --clear-groups"
# No name service knows the nodes.
c.SlurmSpawner.state_exechost_exp = "127.0.0.1"
c.Spawner.environment |= {environ!r}
c.Spawner.env_keep = []
"""


def _proxy() -> str:
    """JupyterHub's own proxy, which npm has."""
    folder = hosts.KEPT / "configurable-http-proxy"
    program = folder / "node_modules/.bin/configurable-http-proxy"
    if not program.exists():
        words = ["npm", "install", "--silent", "--prefix", folder, "configurable-http-proxy@5"]
        subprocess.run([*map(str, words)], check=True, timeout=300)
    return str(program)


def _free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_servers_are_jobs_of_a_user_and_their_kernels_have_a_rank_on_each_node(
    user: User, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    token, port, shared = secrets.token_hex(16), _free(), user.shared
    Export(user, shared, request).installed(
        "fairlead", "jupyterhub-singleuser", "batchspawner-singleuser"
    )
    # What fairlead has downloaded of it; the user has no setting of pip's.
    kernels = cache_dir() / "kernel"
    if kernels.is_dir():
        shutil.copytree(kernels, user.home / ".cache/fairlead/kernel", symlinks=True)
        subprocess.run(["chown", "-R", f"{user.uid}:{user.uid}", user.home / ".cache"], check=True)
    with slurm.slurm(names=("n1", "n2"), cpus=4) as cluster:
        named = ("--mpi", shared / "mpich", "--image", user.image, "--name", "ranks")
        done = cluster.fairlead(
            "site", "export", "--for", "jupyterhub", *named, "-o", shared / "hub"
        )
        assert done.returncode == 0, done.stdout + done.stderr
        path = (
            shared / "bin",
            shared / "fairlead/apptainer/current/bin",
            cluster.folder / "slurm/usr/bin",
        )
        environ = {
            "PATH": ":".join([*map(str, path), "/usr/bin:/bin"]),
            "PYTHONPATH": f"{shared}/code:{shared}/code/packages",
            **{n: v for n, v in cluster.environ.items() if n.startswith(("SLURM", "FAIRLEAD"))},
        }
        config = tmp_path / "jupyterhub_config.py"
        config.write_text(
            _HUB.format(
                export=str(shared / "hub/fairlead_hub.py"), port=port, hub=_free(), api=_free(), proxy=_proxy(),
                token=token, uid=user.uid, environ=environ,
            )
        )  # fmt: skip
        with (tmp_path / "hub.log").open("wb") as log:
            hub = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(config)],
                env=cluster.environ, cwd=tmp_path, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            _used(f"http://127.0.0.1:{port}", token, cluster, user, tmp_path / "hub.log")
        finally:
            hub.terminate()
            hub.wait(60)
        cluster.run("scancel", f"--user={user.uid}")
        waited(cluster.empty, 60, "a job is left")
        waited(lambda: not cluster.processes(), 60, "a process is left on a node")


def _used(base: str, token: str, cluster: slurm.Cluster, user: User, log: Path) -> None:
    name = user.home.name

    def ask(path: str, data: object = None) -> object:
        body = None if data is None else json.dumps(data).encode()
        headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
        request = urllib.request.Request(base + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as stream:
                return json.loads(stream.read() or b"null")
        except urllib.error.HTTPError as exc:
            return {"refused": exc.code}
        except OSError:
            return None

    def logs() -> str:
        texts = [
            p.read_text(errors="replace")[-3000:]
            for p in (log, *user.home.glob(".jupyterhub-*.log"))
        ]
        return "\n".join(texts)

    try:
        waited(lambda: "version" in (ask("/hub/api/") or {}), 60, "the hub does not answer")
    except AssertionError:
        raise AssertionError(logs()) from None
    made = ask(f"/hub/api/users/{name}", {})
    assert made and "name" in made, (made, logs())
    ask(f"/hub/api/users/{name}/server", {"nodes": "2", "ranks_per_node": "1", "runtime": "10:00"})
    try:
        waited(
            lambda: "version" in (ask(f"/user/{name}/api") or {}), 120, "the server does not answer"
        )
    except AssertionError:
        raise AssertionError(logs()) from None
    jobs = cluster.said("squeue", "--noheader", "-o", "%j %D %U").split()
    assert jobs == ["jupyterhub", "2", str(user.uid)]
    made = ask(f"/user/{name}/api/kernels", {"name": "ranks"})
    assert isinstance(made, dict) and "id" in made, (made, logs())
    text = notebooks.over_http(
        f"{base}/user/{name}",
        token,
        made["id"],
        "%%ranks\nimport socket; socket.gethostname(), comm.allreduce(1)",
    )
    assert text.splitlines() == ["Out[0]: ('n1', 2)", "Out[1]: ('n2', 2)"], text + logs()
