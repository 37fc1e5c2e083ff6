"""The report page: whole, self-contained, and its verdict no better than its evidence."""

import dataclasses
import json
import math
import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.support.json_schema import mistakes
from tools import answers

from fairlead.base.comm_waits import TeamWaits
from fairlead.base.errors import Finding, Severity
from fairlead.base.serde import from_json, to_json
from fairlead.base.text import plain
from fairlead.bridge.timings import Operation, Timings
from fairlead.ml.train.model import (
    Evaluation,
    LossPoint,
    RankWeights,
    Speed,
    StepTimes,
    WorkerResult,
)
from fairlead.ml.train.result import Baseline, TrainResult
from fairlead.ml.train.result import judge as judge_training
from fairlead.perf.draw.compose import (
    CommandRun,
    Fact,
    PlanRow,
    ProofRow,
    RankEnd,
    Report,
    bridge_use,
)
from fairlead.perf.draw.run_page import judge, render, write_report

VOID = {"meta", "br", "use", "path"}


def worker(ranks, samples_per_s, auc=0.95):
    same = "f" * 64
    return WorkerResult(
        model="hepcnn",
        backend="tensorflow",
        precision="float32",
        ranks=ranks,
        batch=16,
        threads=1,
        parameters=4_494_594,
        train_samples=6000,
        seed=1,
        mpi="MPICH Version: 5.0.2",
        versions={"keras": "3.15.1"},
        speed=Speed(100, samples_per_s, 0.25, 0.3, 0.23, 0.012, 0.001, 0.0),
        loss=tuple(LossPoint(i, 0, 0.3 * i + 0.3, 0.3 + math.exp(-i / 20)) for i in range(187)),
        weights=tuple(
            RankWeights(rank, "node", f"{rank}" * 64, "a" * 64, same) for rank in range(ranks)
        ),
        train_seconds=56.1,
        epochs_done=1.0,
        evaluation=Evaluation(
            2000, {"auc": auc}, 0.3, tuple((i / 100, i / 100) for i in range(101)), 4.0
        ),
    )


def example(ranks=2, auc=0.95, **changes):
    training = TrainResult(
        worker(1, 66.0),
        worker(ranks, 129.0, auc),
        Baseline({"auc": 0.52}, 1500, 2000, 1.0),
        Path("/data"),
    )
    report = Report(
        title="HEP-CNN in tensorflow",
        created="2026-05-01T12:00:00+00:00",
        ranks=ranks,
        repeat=("fairlead train hepcnn -n 2",),
        proof=tuple(
            ProofRow(
                r,
                "node",
                ranks,
                "/mpi/lib/libmpi.so.12",
                "MPICH Version: 5.0.2",
                "ucx",
                7,
                True,
                "path and inode",
                1,
            )
            for r in range(ranks)
        ),
        plan=(PlanRow("library", "/opt/mpich/lib/libmpi.so.12", "/mpi/lib/libmpi.so.12", "same"),),
        environment=(Fact("site", "laptop"),),
        digests=(Fact("image", "sha256:" + "0" * 64),),
        training=training,
    )
    return dataclasses.replace(report, **changes)


class Balanced(HTMLParser):
    """Fails on a tag that is closed out of order; collects attributes that load things."""

    def __init__(self):
        super().__init__()
        self.open, self.loads, self.seen, self.acts = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.acts += [k for k, _ in attrs if k.startswith("on")]
        self.loads += [v for k, v in attrs if k in ("src", "href", "xlink:href", "srcset") and v]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()


def parsed(html):
    parser = Balanced()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


def test_page_is_whole_self_contained_and_small():
    html = render(example())
    page = parsed(html)
    assert page.seen.count("svg") == 4
    assert all(value.startswith("#") for value in page.loads)
    assert not re.search(r"https?://|url\(\s*[^#)\s]|@import|<script|<link", html)
    assert len(html.encode()) < 1_000_000


def test_figures_use_the_pages_colours_only():
    for svg in re.findall(r"<svg.*?</svg>", render(example()), re.DOTALL):
        assert not re.search(r"#[0-9a-f]{3,6}|(fill|stroke|color|style)=", svg)
        assert re.search(r'class="(bar|line) a"', svg)


def split():
    """The example with the parts of every rank's steps."""
    report = example()
    steps = tuple(
        StepTimes(rank, "node", *((0.001 * (part + rank + 1),) * 5 for part in range(6)))
        for rank in range(2)
    )
    everyone = dataclasses.replace(report.training.all, steps=steps, warmup=2)
    training = dataclasses.replace(report.training, all=everyone)
    return dataclasses.replace(report, training=training)


def test_page_shows_each_ranks_split_in_six_parts():
    report = split()
    steps = report.training.all.steps
    html = render(report)
    parsed(html)
    for rank, total in ((0, 21), (1, 27)):
        assert re.search(rf"<span>rank {rank}</span>.*?<span>{total} ms</span>", html, re.DOTALL)
    for part in steps[0].parts:
        assert html.count(f'title="{part}: ') == 2 and f"</i>{part} <strong>" in html


def test_page_same_report_gives_same_bytes():
    assert render(example()) == render(example())


def test_page_hostile_names_are_escaped():
    html = render(example(title="<script>alert(1)</script>", repeat=("echo '<b>'",)))
    parsed(html)
    assert "<script>" not in html
    assert "&lt;b&gt;" in html


def test_page_without_training_has_no_figures():
    page = parsed(render(example(training=None)))
    assert "svg" not in page.seen


def test_page_training_on_one_rank_is_drawn():
    report = example(ranks=1)
    training = dataclasses.replace(report.training, one=None)
    parsed(render(dataclasses.replace(report, training=training)))


def test_page_many_ranks_shows_the_wrong_ones_first():
    report = example(ranks=300)
    rows = list(report.proof)
    rows[299] = dataclasses.replace(rows[299], planned_ok=False)
    html = render(dataclasses.replace(report, proof=tuple(rows)))
    proof = html[html.index("Proof:") :]
    assert proof.index('data-name="rank">299<') < proof.index('data-name="rank">0<')
    assert "236 more ranks" in proof


def test_json_holds_the_report_and_comes_back(tmp_path):
    report = example()
    html, data = write_report(tmp_path / "out", report)
    assert html.read_text() == render(report)
    payload = json.loads(data.read_text())
    assert (payload["schema"], payload["version"]) == ("fairlead/run-report", 1)
    assert payload["training"].pop("efficiency") == pytest.approx(129 / 132)
    assert payload["training"].pop("scores") == {"auc": 0.95}
    fields = {f.name for f in dataclasses.fields(Report)}
    back = from_json(Report, {k: v for k, v in payload.items() if k in fields})
    assert to_json(back) == to_json(report)


def test_verdict_all_well_is_ok():
    verdict = judge(example())
    assert verdict.word is Severity.OK
    assert verdict.headline == "It ran on MPICH 5.0.2, on 2 ranks, and that is proved."
    assert all(claim.holds for claim in verdict.claims)


def proof_with(**changes):
    report = example()
    rows = (report.proof[0], dataclasses.replace(report.proof[1], **changes))
    return dataclasses.replace(report, proof=rows)


@pytest.mark.parametrize(
    "report",
    [
        proof_with(planned_ok=False),
        proof_with(mpi_count=2),
        proof_with(size=1),
        proof_with(mpi_version="MPICH Version: 3.4.3"),
        example(proof=example().proof[:1]),
    ],
    ids=["other file", "two MPIs", "alone", "other version", "a rank is missing"],
)
def test_verdict_launch_not_as_planned_is_an_error(report):
    verdict = judge(report)
    assert verdict.word is Severity.ERROR
    assert verdict.headline == "Not proved: see what failed below."
    assert "FAIL" in render(report)


def test_verdict_weights_differ_is_an_error():
    report = example()
    weights = report.training.all.weights
    weights = (weights[0], dataclasses.replace(weights[1], final="e" * 64))
    everyone = dataclasses.replace(report.training.all, weights=weights)
    training = dataclasses.replace(report.training, all=everyone)
    assert judge(dataclasses.replace(report, training=training)).word is Severity.ERROR


def test_verdict_learnt_too_little_is_a_warning():
    assert judge(example(auc=0.8)).word is Severity.WARNING


def test_verdict_error_finding_is_the_headline():
    finding = Finding(Severity.ERROR, "the disk is full", "here", "so", "do that")
    verdict = judge(example(findings=(finding,)))
    assert (verdict.word, verdict.headline) == (Severity.ERROR, "The disk is full.")
    assert "do that" in render(example(findings=(finding,)))


def own_run(ranks=2, codes=(0, 0), **changes):
    """A report of a command that is not a bundled model."""
    ends = tuple(
        RankEnd(str(r), "node", code, f"exit code {code}", 4.0 + r, f"/logs/rank.{r}.log")
        for r, code in enumerate(codes)
    )
    waits = (TeamWaits("without a team", 61, 48_000_000, (1.0, 0.02)),)
    run = CommandRun("python3 train.py", "mpiexec -n 2 …", max(codes), 5.0, ends, waits)
    return example(ranks, training=None, run=run, **changes)


def test_page_of_ones_own_command_says_first_what_one_wants_to_know():
    html = render(own_run())
    parsed(html)
    body = re.sub(r"<[^>]+>", " ", html[html.index("<h1>") :])
    wanted = ["It ran on MPICH 5.0.2, on 2 ranks, and that is proved.", "5.0", "from the launch to its end",
              "longest for rank 1", "Every rank ended well", "python3 train.py", "its own work",
              "without a team", "/logs/rank.1.log", "Proof", "Plan", "mpiexec -n 2"]  # fmt: skip
    places = [body.index(words) for words in wanted]
    assert places == sorted(places)


def test_page_of_a_failed_command_leads_with_the_failure_and_its_rank():
    finding = Finding(Severity.ERROR, "rank 1 failed: exit code 3", "rank 1", "so", "read")
    report = own_run(codes=(0, 3), findings=(finding,))
    verdict = judge(report)
    assert (verdict.word, verdict.headline) == (Severity.ERROR, "Rank 1 failed: exit code 3.")
    claim = verdict.claims[0]
    assert not claim.holds
    assert claim.evidence == "1 of 2 ranks ended with exit code 0; exit code 3: rank 1"
    html = render(report)
    table = html[html.index("how each one ended") :]
    assert table.index('data-name="rank">1<') < table.index('data-name="rank">0<')


def test_page_of_a_command_without_proof_claims_none():
    verdict = judge(own_run(proof=()))
    assert verdict.headline == "It ended well. Which MPI it ran on is not proved."
    assert "MPI" not in " ".join(claim.what for claim in verdict.claims)
    refused = Finding(Severity.ERROR, "the image needs a newer glibc", "x", "y", "z")
    nothing = CommandRun("a.out", "", 121, None)
    report = example(training=None, proof=(), run=nothing, findings=(refused,))
    parsed(render(report))
    assert judge(report).headline == "The image needs a newer glibc."
    assert "Launched as" not in render(report)


def session(*operations, mllib_s=None):
    return own_run(bridge=bridge_use(Timings(operations, 4, mllib_s)))


def test_page_of_a_bridge_session_has_what_was_done_and_whether_it_paid():
    send = Operation("send", "Spark", "me", (), ("m1",), 80_000, 1_000, 640_000_000,
                     {"send": (1.0, 1.5), "serialise": (0.2, 0.3)}, 2.0)  # fmt: skip
    svd = Operation(
        "run", "linalg.svd", "me", ("m1",), (), 80_000, 1_000, 0, {"compute": (1.0, 1.1)}, 1.2
    )
    page = render(session(send, svd))
    parsed(page)
    body = " ".join(re.sub(r"<[^>]+>", " ", page[page.index("Bridge: what") :]).split())
    wanted = ["an estimated 3.5 s or more of MLlib, 1.1 times as long: the transfer paid", "Estimate of linalg.svd: 7 s",
              "serialise send compute", "send Spark me 80,000 × 1,000 640 MB", "linalg.svd me"]  # fmt: skip
    places = [body.index(words) for words in wanted]
    assert places == sorted(places)
    measured = render(session(send, svd, mllib_s={"linalg.svd": 3.0}))
    assert "did not pay" in measured and "Estimate of" not in measured
    many = render(session(*[svd] * 70))
    assert "6 earlier operations are in report.json" in many
    assert "No client sent anything" in render(session())
    assert "Bridge: what" not in render(own_run())


def test_json_of_ones_own_command_keeps_to_the_published_schema(tmp_path):
    done = Operation(
        "fetch", "NumPy", "me", ("m1",), (), 2, 3, 48, {"fetch": (0.1, 0.2)}, 0.3, 1, {"k": "2"}
    )
    for report in (own_run(), example(), own_run(proof=()), session(done), session()):
        _, data = write_report(tmp_path, report)
        assert list(mistakes(answers.schema(), json.loads(data.read_text()))) == []


_HOSTILE = (
    "<script>alert(1)</script>",
    "</style><style>body{display:none}</style>",
    "javascript:alert(1)",
    '" onmouseover="alert(1)',
    "]]><!--",
    "\x1b[2J\x1b]0;gone\x07",
    "\u202eproved\u2066",
    "{{ 7 * 7 }}",
)


def saying(text):
    """Reports with ``text`` at every place where words of ranks, images, profiles and users are shown."""
    finding = Finding(Severity.WARNING, text, text, text, text, text)
    end = RankEnd(text, text, 1, text, 1.0, text)
    run = CommandRun(text, text, 1, 1.0, (end,), (TeamWaits(text, 1, 1, (0.1,)),))
    trained = example()
    proof = dataclasses.replace(
        trained.proof[0], host=text, mpi_path=text, mpi_version=text, transport=text, compared=text
    )
    one = dataclasses.replace(trained.training.all.weights[0], host=text, final=text, initial=text)
    steps = tuple(StepTimes(rank, text, *((0.1,) * 5 for _ in range(6))) for rank in range(40))
    everyone = dataclasses.replace(
        trained.training.all, weights=(one,), steps=steps, versions={text: text}, mpi=text
    )
    training = dataclasses.replace(trained.training, all=everyone)
    same = {
        "title": text, "repeat": (text,), "findings": (finding,), "proof": (proof,),
        "plan": (PlanRow(text, text, text, text),), "environment": (Fact(text, text),),
        "digests": (Fact(text, text),),
        "bridge": bridge_use(Timings([Operation(text, text, text, wall_s=1.0)], 1)),
    }  # fmt: skip
    return example(training=None, run=run, **same), example(training=training, **same)


@pytest.mark.parametrize("text", _HOSTILE)
def test_page_shows_markup_and_control_characters_as_text(text):
    for report, harmless in zip(saying(text), saying("x"), strict=True):
        html, usual = render(report), parsed(render(harmless))
        page = parsed(html)
        assert (page.seen, page.loads, page.acts) == (usual.seen, usual.loads, [])
        assert not [c for c in html if not c.isprintable() and c not in "\n\t"]
        assert escape(plain(text)) in html.replace("&#34;", "&quot;")


@pytest.mark.parametrize(
    ("auc", "severity"), [(0.95, None), (0.8, Severity.WARNING), (0.5, Severity.ERROR)]
)
def test_training_gate_and_linear_model_decide(auc, severity):
    findings = list(judge_training(example(auc=auc).training))
    assert [f.severity for f in findings] == ([severity] if severity else [])
