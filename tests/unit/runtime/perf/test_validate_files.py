"""References, history and schemas: what is written comes back, and what is wrong is named with its place."""

from __future__ import annotations

import dataclasses
import datetime
import json
from pathlib import Path

import pytest
from tests.support.json_schema import mistakes, validates
from tests.support.validated import demo, kept, with_verdicts
from tools import json_schemas

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.perf.judge import references as reference
from fairlead.perf.records import documents, history
from fairlead.perf.records.validation import SCHEMA, SCHEMA_VERSION, State, Validation

ROOT = Path(__file__).resolve().parents[4]
WELL = demo(bad_node=None, steps=3, id="20260301T000000-demo")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "sites").mkdir()
    return {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }


def refused(call, *words: str) -> FairleadError:
    with pytest.raises(FairleadError) as caught:
        call()
    said = " ".join(f"{f.what} {f.where} {f.why} {f.remedy}" for f in caught.value.findings)
    for word in words:
        assert word in said, said
    return caught.value


def test_references_saved_come_back_and_judge(environ: dict[str, str]) -> None:
    path, saved = reference.save(WELL, environ=environ)
    assert path == Path(environ["XDG_CONFIG_HOME"], "fairlead/sites/demo.references.json")
    back = reference.load("demo", environ)
    assert back == saved and len(back.by_key) == len(WELL.measurements)
    assert back.machine[WELL.id]["kernel"] == WELL.machine.facts["kernel"]
    one = back.values[0]
    assert (one.run, one.when, one.repeats) == (WELL.id, WELL.begun, 12)
    assert one.low <= 0.95 * one.median and one.high >= 1.05 * one.median
    assert all(v.state is State.NORMAL for v in with_verdicts(WELL, back.by_key).verdicts)
    assert reference.load("elsewhere", environ).values == ()


def test_references_of_lines_not_measured_stay(environ: dict[str, str]) -> None:
    reference.save(WELL, environ=environ)
    few = dataclasses.replace(
        WELL, id="later", measurements=WELL.measurements[:2], verdicts=WELL.verdicts[:2]
    )
    _, saved = reference.save(few, environ=environ)
    assert len(saved.values) == len(WELL.measurements)
    assert {k.run for k in saved.values} == {"later", WELL.id} == set(saved.machine)


def test_references_of_a_later_folder_win_line_by_line(
    environ: dict[str, str], tmp_path: Path
) -> None:
    reference.save(WELL, environ=environ)
    extra = environ | {"FAIRLEAD_SITES_EXTRA": str(tmp_path / "sites")}
    few = dataclasses.replace(
        WELL, id="shared", measurements=WELL.measurements[:1], verdicts=WELL.verdicts[:1]
    )
    path, _ = reference.save(few, environ=extra)
    assert path.parent == tmp_path / "sites"
    runs = [k.run for k in reference.load("demo", extra).values]
    assert runs.count("shared") == 1 and runs.count(WELL.id) == len(WELL.measurements) - 1


def changed(state: State) -> Validation:
    first = dataclasses.replace(WELL.verdicts[0], state=state)
    return dataclasses.replace(WELL, verdicts=(first, *WELL.verdicts[1:]))


def test_references_are_not_made_of_what_is_no_yardstick(environ: dict[str, str]) -> None:
    wrong, slow = changed(State.WRONG), changed(State.SLOW)
    crowd = tuple(dataclasses.replace(m, crowded=True) for m in WELL.measurements)
    crowded = dataclasses.replace(WELL, measurements=crowd)
    short = tuple(dataclasses.replace(m, samples=m.samples[:4]) for m in WELL.measurements)
    few = dataclasses.replace(WELL, measurements=short)
    for validation, word in (
        (wrong, "wrong answers"),
        (slow, "--save-slow"),
        (crowded, "--save-crowded"),
        (few, "no line has 5 repeats"),
    ):
        error = refused(lambda v=validation: reference.save(v, environ=environ), word)
        assert error.code == ExitCode.FAILED and error.findings[0].check == "reference-save"
        assert reference.files("demo", environ) == ()
    refused(
        lambda: reference.save(wrong, crowded_too=True, slow_too=True, environ=environ), "wrong"
    )
    assert reference.save(slow, slow_too=True, environ=environ)
    _, saved = reference.save(crowded, crowded_too=True, environ=environ)
    assert all(k.crowded for k in saved.values)


def test_references_that_cannot_be_written_are_reported(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("a file")
    refused(
        lambda: reference.save(WELL, environ=environ), "cannot be written", "FAIRLEAD_SITES_EXTRA"
    )


def edited(path: Path, edit) -> Path:
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))
    return path


def test_references_every_mistake_is_named_at_once(environ: dict[str, str]) -> None:
    path, _ = reference.save(WELL, environ=environ)

    def edit(data) -> None:
        data["values"][0]["median"] = "fast"
        data["values"][1]["repeets"] = data["values"][1].pop("repeats")
        data["values"][2]["crowded"] = 1
        data["machine"] = []

    edited(path, edit)
    error = refused(
        lambda: reference.load("demo", environ),
        "values[0].median: expected a number, not a string",
        "values[1].repeets: unknown key. Did you mean `repeats`?",
        "values[1].repeats: missing",
        "values[2].crowded: expected true or false, not 1",
        "machine: expected an object, not a list",
        str(path),
    )
    assert error.code == ExitCode.USAGE and len(error.findings) == 5


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        (lambda d: d["values"].append(d["values"][0]), "twice"),
        (lambda d: d.update(site="cori"), "it is for `cori`"),
        (lambda d: d.update(version=9), "reads version 1"),
        (lambda d: d.update(schema="other"), "fairlead/references"),
        (lambda d: d["values"][0].update(low=-1.0), "above 0"),
        (lambda d: d["values"][0].update(repeats=2), "at least 5"),
    ],
)
def test_references_that_contradict_themselves_are_refused(environ, edit, word) -> None:
    path, _ = reference.save(WELL, environ=environ)
    edited(path, edit)
    refused(lambda: reference.load("demo", environ), word)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "\x00\xff", '{"schema": "fairlead/validation", "version": 1, "id": NaN}', "[" * 99999]
)  # fmt: skip
def test_document_that_is_none_is_bad_input(tmp_path: Path, content: str) -> None:
    path = tmp_path / "v.json"
    path.write_bytes(content.encode("latin-1"))
    assert refused(lambda: history.read(path), str(path)).code == ExitCode.USAGE
    refused(lambda: history.read(tmp_path / "none.json"), "No such file")
    refused(lambda: history.read(tmp_path), "directory")


def test_validation_kept_comes_back_the_same(environ: dict[str, str]) -> None:
    path = history.keep(WELL, environ)
    assert history.find(WELL.id, environ) == WELL == history.find(str(path), environ)
    refused(lambda: history.keep(WELL, environ), "already")
    refused(
        lambda: history.keep(dataclasses.replace(WELL, id="../x"), environ), "not a valid file name"
    )


def test_validation_is_found_by_each_of_its_names(environ: dict[str, str], tmp_path: Path) -> None:
    names = ["20260301T000000-demo", "20260302T000000-demo", "20270101T000000-other"]
    for name in names:
        history.keep(dataclasses.replace(WELL, id=name), environ)
    assert list(history.files(environ)) == names

    def found(name: str) -> str:
        return history.find(name, environ).id

    assert [found(n) for n in ("last", "last~0", "last~2", "2027", names[1])] == [
        names[2],
        names[2],
        names[0],
        names[2],
        names[1],
    ]
    refused(lambda: found("2026"), "several begin so", names[0], names[1])
    refused(lambda: found("last~3"), "3 are kept")
    refused(lambda: found("20260301T000000-dmeo"), "Did you mean `20260301T000000-demo`?")
    refused(lambda: found(""), "no validation")
    folder = tmp_path / "out"
    documents.write(folder / "validation.json", WELL, SCHEMA, SCHEMA_VERSION)
    assert history.find(f"{folder}/", environ) == WELL
    broken = history.folder(environ) / "20280101T000000-x.json"
    broken.write_text("{}")
    refused(lambda: found("last"), "schema")


def test_history_that_is_empty_says_so(environ: dict[str, str]) -> None:
    assert not history.files(environ)
    refused(lambda: history.find("last", environ), "0 are kept", "fairlead validate")


def test_new_id_is_a_file_name_and_sorts_by_time() -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert history.new_id("laptop", at) == "20260102T030405-laptop"
    assert "/" not in history.new_id("../x y", at)


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        (lambda d: d["verdicts"].pop(), "one each"),
        (lambda d: d["measurements"][0]["samples"].append(-1.0), "above 0"),
        (lambda d: d["measurements"][0]["samples"].append(None), "samples[12]"),
        (lambda d: d["measurements"][0].update(what="pingpnog"), "Did you mean `pingpong`?"),
        (lambda d: d["steps"][0]["input_s"].pop(), "same number of steps"),
        (lambda d: d["steps"][0].update(input_s=[-1.0, 0.0, 0.0]), "shorter than nothing"),
        (lambda d: d["machine"].update(cores=1.5), "machine.cores: expected an integer"),
    ],
)
def test_validation_that_contradicts_itself_is_refused(tmp_path: Path, edit, word) -> None:
    path = tmp_path / "v.json"
    documents.write(path, WELL, SCHEMA, SCHEMA_VERSION)
    refused(lambda: history.read(edited(path, edit)), word)


@pytest.mark.parametrize("file", json_schemas.PUBLISHED)
def test_schema_published_is_that_of_the_code(file: str) -> None:
    published = ROOT / "docs" / "reference" / file
    assert published.read_text() == json_schemas.text(file), "python -m tools.json_schemas"


@validates
def test_schema_fits_what_is_written_and_says_what_keys_mean(tmp_path: Path) -> None:
    for file, value in (
        ("validation.schema.json", demo(references=kept(), steps=3)),
        ("references.schema.json", reference.make(WELL)),
    ):
        cls, name, version = json_schemas.PUBLISHED[file]
        made = json.loads(json_schemas.text(file))
        written = json.loads(documents.text(value, name, version))
        assert not mistakes(made, written)
        assert isinstance(value, cls)
        written["knots"] = 1
        assert mistakes(made, written)
    validation = json.loads(json_schemas.text("validation.schema.json"))
    measurement = validation["definitions"]["Measurement"]["properties"]
    assert measurement["crowded"]["description"] == "there were more ranks than cores."
    assert "samples" in validation["definitions"]["Measurement"]["required"]


def test_document_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    path.write_text("before")
    broken = dataclasses.replace(WELL, seconds=float("nan"))
    with pytest.raises(ValueError, match="JSON"):
        documents.write(path, broken, SCHEMA, SCHEMA_VERSION)
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
