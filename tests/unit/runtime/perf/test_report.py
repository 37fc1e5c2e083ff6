"""The report page: whole, self-contained, and its verdict no better than its evidence."""

import dataclasses
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fairlead.base.errors import Finding, Severity
from fairlead.base.serde import from_json, to_json
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
from fairlead.perf.draw.compose import Fact, PlanRow, ProofRow, Report
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
        self.open, self.loads, self.seen = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
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
    assert (payload["schema"], payload["version"]) == ("fairlead/report", 1)
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
    assert (verdict.word, verdict.headline) == (Severity.ERROR, "the disk is full.")
    assert "do that" in render(example(findings=(finding,)))


@pytest.mark.parametrize(
    ("auc", "severity"), [(0.95, None), (0.8, Severity.WARNING), (0.5, Severity.ERROR)]
)
def test_training_gate_and_linear_model_decide(auc, severity):
    findings = list(judge_training(example(auc=auc).training))
    assert [f.severity for f in findings] == ([severity] if severity else [])
