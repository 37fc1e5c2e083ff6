"""Site profiles: what they may say, which fits, and why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import site
from fairlead.base.errors import ExitCode, FairleadError
from fairlead.base.paths import bundled
from fairlead.site import layers

LAPTOP = (bundled("sitecfg") / "laptop.toml").read_text()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Nothing on PATH, and folders of our own."""
    names = ("CACHE", "CONFIG", "DATA")
    return {"PATH": str(tmp_path), **{f"XDG_{n}_HOME": str(tmp_path / n) for n in names}}


def own_profile(environ: dict[str, str], name: str, text: str) -> Path:
    path = Path(environ["XDG_CONFIG_HOME"], "fairlead/sites", f"{name}.toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_every_bundled_profile_is_sound_and_called_as_its_file() -> None:
    files = sorted(bundled("sitecfg").rglob("*.toml"))
    assert files
    for path in files:
        assert layers.load(path).name == path.stem


def test_profile_with_three_mistakes_has_three_findings_with_lines(tmp_path: Path) -> None:
    lines = LAPTOP.splitlines()
    kind = next(n for n, line in enumerate(lines) if line.startswith("kind = "))
    lines[kind] = 'kind = "infinband"'
    engines = next(n for n, line in enumerate(lines) if line.startswith("kinds = "))
    lines[engines] = 'knids = ["apptainer"]'
    start = next(n for n, line in enumerate(lines) if line.startswith("start_s"))
    lines[start] = "start_s = -3"
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(lines))
    with pytest.raises(FairleadError) as caught:
        layers.load(path)
    assert caught.value.code is ExitCode.USAGE
    where = {f.where for f in caught.value.findings}
    for number in (kind, engines, start):
        assert f"{path}:{number + 1}" in where
    text = " ".join(f"{f.what} {f.why}" for f in caught.value.findings)
    for words in ("Did you mean `kinds`?", "allowed: cobalt, lsf", "greater than 0"):
        assert words in text


def test_charge_of_a_partition_or_the_default_is_said_for_all_nodes(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[site]\nname = "mine"\nsummary = "x"\nextends = "laptop"\n[sources.us]\ntext = "us"\nstatus = "run"\n'
        '[scheduler]\nsource = "us"\nkind = "slurm"\ncharge_unit = "EUR"\ncharge = {default = 1.5, gpu = 8}\n'
    )
    scheduler = layers.load(path).scheduler
    assert scheduler.hourly(4, "gpu") == "32 EUR an hour"
    assert scheduler.hourly(1, "debug") == "1.5 EUR an hour"
    assert layers.load(bundled("sitecfg") / "laptop.toml").scheduler.hourly(4, "") == ""


def test_load_site_unknown_lists_or_suggests(environ: dict[str, str]) -> None:
    with pytest.raises(FairleadError) as caught:
        site.load_site("labtop", environ)
    [finding] = caught.value.findings
    assert finding.check == "site-unknown" and "Did you mean `laptop`?" in finding.why


def test_load_site_the_users_own_wins_and_edits_are_seen(environ: dict[str, str]) -> None:
    assert site.load_site("laptop", environ).start_s == 30
    path = own_profile(environ, "laptop", LAPTOP.replace("start_s = 30", "start_s = 7"))
    assert site.load_site("laptop", environ).start_s == 7
    path.write_text(LAPTOP.replace("start_s = 30", "start_s = 8"))
    assert site.load_site("laptop", environ).start_s == 8
    path.write_text(LAPTOP.replace("start_s = 30", "start_s = 0"))
    with pytest.raises(FairleadError):
        site.load_site("laptop", environ)


def test_resolve_order_is_option_variable_detected(environ: dict[str, str]) -> None:
    own_profile(environ, "mine", LAPTOP.replace('name = "laptop"', 'name = "mine"'))
    assert site.resolve("mine", environ)[1] == "named by --site"
    chosen, why = site.resolve(None, {**environ, "FAIRLEAD_SITE": "mine"})
    assert (chosen.name, why) == ("mine", "named by $FAIRLEAD_SITE")


def test_resolve_where_none_fits_is_refused_with_reasons(
    environ: dict[str, str], tmp_path: Path
) -> None:
    # With the families that come with fairlead, a scheduler and no fabric is `ethernet`.
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "laptop.toml").write_text(LAPTOP)
    environ["FAIRLEAD_SITES"] = str(tmp_path / "only")
    program = tmp_path / "srun"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    installed, reason = site.resolve(None, environ)
    assert installed.name == "laptop", "a program of Slurm's says nothing of the machine"
    assert reason.startswith("guessed: `srun` is on PATH; no scheduler is configured here")
    environ["SLURM_CONF"] = str(tmp_path / "slurm.conf")
    with pytest.raises(FairleadError) as caught:
        site.resolve(None, environ)
    [finding] = caught.value.findings
    assert caught.value.code is ExitCode.USAGE and finding.check == "site-detect"
    assert "laptop: `srun` is on PATH, and there is $SLURM_CONF" in finding.why
    assert "fairlead site detect --write" in finding.remedy
    assert "`--site laptop`: mpiexec, on this node only" in finding.remedy
    environ.pop("FAIRLEAD_SITES")
    with pytest.raises(FairleadError) as caught:
        site.resolve(None, environ)
    remedy = caught.value.findings[0].remedy
    assert "`--site ethernet`: Cluster with Ethernet: TCP" in remedy, "what fits comes by name"
    assert "`--site cray-ex-slingshot`" not in remedy, "what something contradicts does not"
