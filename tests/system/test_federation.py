"""Two sites, each with a store and a scheduler of its own: data of one are found by digest and used at the other."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.support.object_stores import LoopbackStore, swift
from tests.system import hosts, slurm
from tests.system.hosts import fairlead

from fairlead.base import data_list

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces"),
]
_PROFILE = """\
[profile {name}]
endpoint_url = {store.endpoint}
region = us-east-1
aws_access_key_id = {store.key}
aws_secret_access_key = {store.secret}
"""


def of_site(cluster: slurm.Cluster, own: LoopbackStore, others: Path) -> None:
    """What a user of a site has in the shell: the site's own store, and profiles of others."""
    path = f"{Path(sys.executable).parent}:{cluster.environ['PATH']}"
    cluster.environ |= {**own.variables(), "AWS_CONFIG_FILE": str(others), "PATH": path}


def test_set_of_one_site_is_found_by_digest_and_used_at_the_other(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    numbers.mkdir()
    for n in range(40):
        (numbers / f"{n:02d}.txt").write_text(f"{n}\n")
    with swift() as store_a, swift() as store_b, slurm.slurm() as site_a, slurm.slurm() as site_b:
        for store in (store_a, store_b):
            store.make_bucket("lab")
        profiles = tmp_path / "config"
        profiles.touch(0o600)
        profiles.write_text(_PROFILE.format(name="site-a", store=store_a))
        of_site(site_a, store_a, Path("/dev/null"))
        of_site(site_b, store_b, profiles)

        shards = tmp_path / "shards"
        packed = fairlead("data", "pack", "--shard-size", "3kB", numbers, shards)
        assert packed.returncode == 0, packed.stderr
        publish = f"fairlead data sync {shards} s3://lab/published/numbers"
        number = site_a.said("sbatch", "--parsable", "--wrap", publish).strip()
        assert site_a.ended(number)["JobState"] == "COMPLETED"
        files = data_list.parsed(store_a.get("lab", "published/numbers/data.json"), "list")
        digest = data_list.set_digest((f.name, f.sha256) for f in files.values())

        recipe = hosts.ROOT / "examples/federation.sh"
        there = ("s3://site-a@lab/published", "s3://site-a@lab/results/b")
        site_b.environ["RUN"] = "-N 2 -n 4 --stage-to memory"
        done = site_b.run("sh", recipe, digest[:16], *there, limit_s=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "found s3://site-a@lab/published/numbers" in done.stdout
        assert store_a.secret not in done.stdout + done.stderr

        keys = store_a.keys("lab", "results/b/")
        results = [key for key in keys if "/rank" in key]
        assert len(results) == 4 and len({key.split("/")[2] for key in results}) == 2
        assert {store_a.get("lab", key) for key in results} == {b"780\n"}
        assert store_b.keys("lab") == []
        missing = site_b.run("sh", recipe, "0" * 16, *there)
        assert missing.returncode != 0
