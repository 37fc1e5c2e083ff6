"""Profiles over profiles: what wins, what is merged, where each value is said to come from, mistakes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import site
from fairlead.base.errors import ExitCode, FairleadError, Finding
from fairlead.site import Status, choose, layers, new

SMALL = '[site]\nname = "{name}"\nsummary = "of a test"\n{more}'
ACCEPTS = '[fabric]\nsource = "guess"\naccepts = ["shm"]\n'


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Folders of our own, the administrator's among them; nothing of this machine."""
    monkeypatch.setattr(choose, "SYSTEM", tmp_path / "sites.d")
    names = ("CACHE", "CONFIG", "DATA")
    return {"PATH": str(tmp_path), **{f"XDG_{n}_HOME": str(tmp_path / n) for n in names}}


def put(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def small(name: str, more: str = "", extends: str = "") -> str:
    base = f'extends = "{extends}"\n' if extends else ""
    return SMALL.format(name=name, more=base) + more


def own(environ: dict[str, str]) -> Path:
    return Path(environ["XDG_CONFIG_HOME"], "fairlead/sites")


def mistakes(path: Path, environ: dict[str, str]) -> list[Finding]:
    with pytest.raises(FairleadError) as caught:
        layers.load(path, environ)
    assert caught.value.code is ExitCode.USAGE
    return list(caught.value.findings)


def test_each_folder_comes_before_the_one_below_it(environ: dict[str, str], tmp_path: Path) -> None:
    def start(seconds: int) -> str:
        return small("laptop", f'[watchdog]\nsource = "guess"\nstart_s = {seconds}\n', "laptop")

    assert site.load_site("laptop", environ).start_s == 30
    for seconds, folder in enumerate((choose.SYSTEM, own(environ), tmp_path / "more"), start=1):
        put(folder, "laptop", start(seconds))
        if folder.name == "more":
            environ["FAIRLEAD_SITES_EXTRA"] = str(folder)
        found = site.load_site("laptop", environ)
        assert found.start_s == seconds
        assert found.scheduler.kind == "none" and "tcp" in found.accepts  # the bundled one is below


def test_variable_that_replaces_leaves_nothing_else(
    environ: dict[str, str], tmp_path: Path
) -> None:
    put(tmp_path / "only", "mine", small("mine", ACCEPTS))
    put(own(environ), "yours", small("yours", ACCEPTS))
    environ["FAIRLEAD_SITES"] = str(tmp_path / "only")
    assert set(site.all_sites(environ).sites) == {"mine"}
    put(tmp_path / "more", "third", small("third", ACCEPTS))
    environ["FAIRLEAD_SITES_EXTRA"] = str(tmp_path / "more")
    assert set(site.all_sites(environ).sites) == {"mine", "third"}


def test_variable_that_extends_takes_several_folders(
    environ: dict[str, str], tmp_path: Path
) -> None:
    for name in ("a", "b"):
        put(tmp_path / name, f"my-{name}", small(f"my-{name}", ACCEPTS))
    environ["FAIRLEAD_SITES_EXTRA"] = f"{tmp_path / 'a'}:{tmp_path / 'b'}"
    assert {"my-a", "my-b", "laptop", "cori"} <= set(site.all_sites(environ).sites)


@pytest.mark.parametrize("variable", ["FAIRLEAD_SITES", "FAIRLEAD_SITES_EXTRA"])
def test_variable_that_names_no_folder_is_refused(
    variable: str, environ: dict[str, str], tmp_path: Path
) -> None:
    environ[variable] = f"{tmp_path}:{tmp_path / 'no where'}"
    with pytest.raises(FairleadError) as caught:
        site.load_site("laptop", environ)
    [finding] = caught.value.findings
    assert (finding.check, finding.where) == ("site-folder", str(tmp_path / "no where"))
    assert variable in finding.what and f"'{tmp_path / 'no where'}'" in finding.remedy


def test_file_that_extends_another_name_hides_the_one_below(environ: dict[str, str]) -> None:
    put(own(environ), "cori", small("cori", ACCEPTS))
    found = site.load_site("cori", environ)
    assert found.lineage == ("cori",) and found.accepts == ("shm",) and not found.until


def test_file_that_extends_its_own_name_amends(environ: dict[str, str]) -> None:
    before = site.load_site("cori", environ)
    put(
        choose.SYSTEM,
        "cori",
        small(
            "cori",
            '[sources.ops]\ntext = "operators"\nstatus = "run"\n'
            '[environment]\nsource = "ops"\nset = { HDF5_USE_FILE_LOCKING = "TRUE", X = "1" }\n'
            '[binds]\nsource = "ops"\npaths = ["/only"]\n',
            "cori",
        ),
    )
    found = site.load_site("cori", environ)
    assert found.environment.set == {
        **before.environment.set,
        "HDF5_USE_FILE_LOCKING": "TRUE",
        "X": "1",
    }
    assert found.binds == ("/only",)
    assert found.fabric == before.fabric and found.until == before.until == "2023-05-31"
    assert found.lineage == ("cori", "cray-xc-aries")
    origin = found.origins
    assert origin["environment.set"].source == "operators"
    assert origin["environment.set.X"].status is Status.RUN
    assert origin["environment.set.PMI_MMAP_SYNC_WAIT_TIME"].status is Status.USER
    assert origin["binds.paths"].status is Status.RUN


def test_file_given_by_its_path_may_amend_one_of_its_name(
    environ: dict[str, str], tmp_path: Path
) -> None:
    path = put(
        tmp_path / "elsewhere",
        "laptop",
        small("laptop", '[watchdog]\nsource = "guess"\nstart_s = 9\n', "laptop"),
    )
    assert layers.load(path, environ).start_s == 9
    assert site.load_site(str(path), environ).engine.kinds[0] == "apptainer"


def test_unknown_base_is_reported_with_the_other_mistakes(environ: dict[str, str]) -> None:
    path = put(own(environ), "mine", small("mine", '[fabric]\nacepts = ["shm"]\n', "infinband"))
    base, key = mistakes(path, environ)
    assert base.check == "site-extends" and "Did you mean `infiniband`?" in base.why
    assert base.where == f"{path}:4"
    assert key.check == "unknown-key" and key.where == f"{path}:6" and "`accepts`" in key.why


def test_bases_that_come_round_are_reported_with_their_way(environ: dict[str, str]) -> None:
    for name, base in (("a", "b"), ("b", "c"), ("c", "a")):
        put(own(environ), name, small(name, ACCEPTS, base))
    [finding] = mistakes(own(environ) / "a.toml", environ)
    assert finding.check == "site-extends" and "a -> b -> c -> a" in finding.why


def test_base_that_is_no_toml_is_reported_by_its_own_line(environ: dict[str, str]) -> None:
    broken = put(own(environ), "base", "[site\n")
    path = put(own(environ), "mine", small("mine", "", "base"))
    [finding] = mistakes(path, environ)
    assert finding.check == "toml-syntax" and finding.where == f"{broken}:1"


def test_three_mistakes_in_two_files_are_three_findings(environ: dict[str, str]) -> None:
    base = put(own(environ), "base", small("base", ACCEPTS + '[scheduler]\nkind = "slrum"\n'))
    path = put(
        own(environ),
        "mine",
        small(
            "mine", '[launcher]\nkinds = ["srun"]\n[gpu]\nsource = "gess"\nper_node = 4\n', "base"
        ),
    )
    found = {(f.where, f.check): f for f in mistakes(path, environ)}
    assert set(found) == {
        (f"{base}:8", "bad-value"),
        (f"{path}:6", "site-source"),
        (f"{path}:8", "site-source"),
    }
    assert "allowed: cobalt" in found[f"{base}:8", "bad-value"].why
    assert "`launcher.kinds` has no source" in found[f"{path}:6", "site-source"].what
    assert "Did you mean `guess`?" in found[f"{path}:8", "site-source"].why
    assert found[f"{path}:6", "site-source"].remedy == "edit line 6, then `fairlead site show mine`"


def test_source_of_what_is_not_set_and_name_that_is_not_the_files_are_reported(
    environ: dict[str, str], tmp_path: Path
) -> None:
    more = ACCEPTS + 'sources.kind = "guess"\n[[performance]]\nwhat = "x"\nvalue = 1\nunit = "us"\n'
    path = put(tmp_path / "x y", "mine", small("yours", more + 'better = "lower"\nsource = "me"\n'))
    kinds = [(f.check, f.where.rpartition(":")[2]) for f in mistakes(path, environ)]
    assert kinds == [("site-source", "7"), ("site-source", "13"), ("site-name", "2")]
    assert all(f"fairlead site show '{path}'" in f.remedy for f in mistakes(path, environ))


def test_profile_that_accepts_nothing_is_refused(environ: dict[str, str]) -> None:
    [finding] = mistakes(put(own(environ), "mine", small("mine")), environ)
    assert finding.check == "missing-key" and "fabric.accepts" in finding.why


def test_broken_profile_does_not_keep_another_from_being_named(environ: dict[str, str]) -> None:
    path = put(own(environ), "mine", small("mine", "[fabrik]\n"))
    for _ in range(2):  # afresh, then from what is remembered
        every = site.all_sites(environ)
        assert set(every.wrong) == {"mine"} and every.wrong["mine"][0].where == f"{path}:4"
        assert site.resolve("laptop", environ)[0].name == "laptop"
        with pytest.raises(FairleadError) as caught:
            site.load_site("mine", environ)
        assert caught.value.findings == every.wrong["mine"]
    with pytest.raises(FairleadError) as caught:  # it might have been the one
        site.resolve(None, environ)
    assert [f.where for f in caught.value.findings] == [f"{path}:4"]
    path.write_text(small("mine", ACCEPTS))
    assert not site.all_sites(environ).wrong


# Layers of any content: an item of each kind of value.
words = st.text("abc", min_size=1, max_size=3)
layer = st.fixed_dictionaries(
    {},
    optional={
        "accepts": st.lists(words, min_size=1, max_size=3),
        "set": st.dictionaries(st.sampled_from(["A", "B", "C"]), words, min_size=1),
        "start_s": st.integers(1, 3600),
        "notes": st.lists(words, min_size=1, max_size=2),
        "status": st.sampled_from(["run", "documented", "user", "guess"]),
    },
)


def written(number: int, content: dict[str, Any]) -> str:
    notes = json.dumps(content.get("notes", []))
    base = f'extends = "l{number - 1}"\n' if number else ""
    status = content.get("status", "user")
    text = f'[site]\nname = "l{number}"\nsummary = "x"\nnotes = {notes}\n{base}'
    text += f'[sources.s]\ntext = "layer {number}"\nstatus = "{status}"\n'
    if "accepts" in content:
        text += f'[fabric]\nsource = "s"\naccepts = {json.dumps(content["accepts"])}\n'
    if "set" in content:
        pairs = ", ".join(f"{k} = {json.dumps(v)}" for k, v in content["set"].items())
        text += f'[environment]\nsource = "s"\nset = {{ {pairs} }}\n'
    if "start_s" in content:
        text += f'[watchdog]\nsource = "s"\nstart_s = {content["start_s"]}\n'
    return text


@given(contents=st.lists(layer, min_size=1, max_size=4))
def test_layers_of_any_content_later_wins_and_origins_follow(
    contents: list[dict[str, Any]], tmp_path: Path
) -> None:
    contents[0].setdefault("accepts", ["shm"])
    for number, content in enumerate(contents):
        put(tmp_path / "layers", f"l{number}", written(number, content))
    top = len(contents) - 1
    found = layers.load(
        tmp_path / "layers" / f"l{top}.toml", {"FAIRLEAD_SITES": str(tmp_path / "layers")}
    )

    def last(key: str) -> int | None:
        return max((n for n, c in enumerate(contents) if key in c), default=None)

    assert found.lineage == tuple(f"l{n}" for n in range(top, -1, -1))
    number = last("accepts")
    assert number is not None and found.accepts == tuple(contents[number]["accepts"])
    assert found.origins["fabric.accepts"].profile == f"l{number}"
    assert found.origins["fabric.accepts"].status == contents[number].get("status", "user")
    number = last("start_s")
    assert found.start_s == (30 if number is None else contents[number]["start_s"])
    assert ("watchdog.start_s" in found.origins) == (number is not None)
    merged: dict[str, tuple[str, int]] = {}
    for n, content in enumerate(contents):
        merged |= {k: (v, n) for k, v in content.get("set", {}).items()}
    assert found.environment.set == {k: v for k, (v, _) in merged.items()}
    for key, (_, n) in merged.items():
        assert found.origins[f"environment.set.{key}"].source == f"layer {n}"
    assert set(found.notes) == {note for c in contents for note in c.get("notes", ())}
    assert len(set(found.notes)) == len(found.notes)


def uncommented(text: str) -> str:
    """A new profile with everything in it that is offered as a comment."""
    return re.sub(r"^# (?=\[[a-z]+\]$|\w+ = |  \S|\]$)", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("parent", ["infiniband", "laptop", "cori", "cray-ex-slingshot", "alps"])
def test_new_profile_is_sound_as_it_is_and_with_all_that_it_offers(
    parent: str, environ: dict[str, str], tmp_path: Path
) -> None:
    made = new.plan("mine", parent, None, environ)
    assert made.path == own(environ) / "mine.toml"
    new.write(made)
    base, found = site.load_site(parent, environ), site.load_site("mine", environ)
    assert found.lineage == ("mine", *base.lineage)
    assert (found.accepts, found.mpi, found.origins) == (base.accepts, base.mpi, base.origins)
    assert json.loads((made.path.parent / "site.schema.json").read_text())["$schema"]
    made.path.write_text(uncommented(made.text))
    said = tomllib.loads(made.path.read_text())
    assert {"detect", "scheduler", "fabric", "mpi", "binds", "storage"} <= set(said)
    whole = site.load_site("mine", environ)
    assert whole.accepts == base.accepts and whole.origins["fabric.accepts"].profile == "mine"
    assert (
        max(len(line) for line in made.text.splitlines() if not re.match(r"# (set|env) =", line))
        <= 110
    )


def test_new_profile_of_a_known_name_amends_it(environ: dict[str, str]) -> None:
    new.write(new.plan("lumi", None, None, environ))
    assert site.load_site("lumi", environ).lineage == ("lumi", "cray-ex-slingshot")


@pytest.mark.parametrize(
    ("name", "parent", "file", "said"),
    [
        ("My Site", "laptop", None, "fairlead site new my-site"),
        ("mine", None, None, "Families: cray-ex-slingshot, cray-xc-aries, efa, ethernet"),
        ("mine", "laptop", "other.toml", "must be mine.toml"),
        ("mine", "labtop", None, "Did you mean `laptop`?"),
    ],
)
def test_new_profile_that_can_not_be_is_refused(
    name: str,
    parent: str | None,
    file: str | None,
    said: str,
    environ: dict[str, str],
    tmp_path: Path,
) -> None:
    with pytest.raises(FairleadError) as caught:
        new.plan(name, parent, tmp_path / file if file else None, environ)
    [finding] = caught.value.findings
    assert caught.value.code is ExitCode.USAGE
    assert said in f"{finding.what} {finding.why} {finding.remedy}"


def test_new_profile_writes_over_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    for path in (tmp_path / "mine.toml", None):
        made = new.plan("mine", "laptop", path, environ)
        new.write(made)
        with pytest.raises(FairleadError) as caught:
            new.plan("mine", "laptop", path, environ)
        [finding] = caught.value.findings
        assert finding.check == "site-new" and finding.where == str(made.path)
    with pytest.raises(FairleadError):
        new.write(new.plan("mine", "laptop", tmp_path / "mine.toml" / "mine.toml", environ))
