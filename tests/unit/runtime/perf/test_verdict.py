"""Verdicts: what is expected and from where, slow, normal or undecided, and every reason with its evidence."""

from __future__ import annotations

import dataclasses

import pytest
from tests.support.validated import BOUNDS, demo, kept

from fairlead.base.errors import ExitCode, Finding, Severity
from fairlead.perf.judge import diagnosis
from fairlead.perf.judge.assess import load_of
from fairlead.perf.judge.bounds import limit, of_site
from fairlead.perf.judge.references import Kept
from fairlead.perf.judge.verdict import exit_code, headline, judge, worst
from fairlead.perf.records.validation import (
    Basis,
    Bound,
    Bounds,
    Clock,
    Culprit,
    Evidence,
    Machine,
    Measurement,
    Shares,
    State,
    Validation,
    Way,
    What,
)
from fairlead.site import load_site

EXACT = (0.99, 1.0, 1.0, 1.0, 1.0, 1.0, 1.01)
NOTHING = Bounds()


def measured(times: float = 1.0, **changes) -> Measurement:
    """64 MB between two nodes in 10 ms, or so many times that."""
    base = Measurement(What.ALLREDUCE, Way.NATIVE, (), 2, 2, 64_000_000)
    samples = changes.pop("samples", tuple(0.01 * times * x for x in EXACT))
    return dataclasses.replace(base, samples=samples, **changes)


def reference(m: Measurement, median: float = 0.01, **changes) -> dict[str, Kept]:
    made = Kept(m.key, m.unit, median, 0.95 * median, 1.05 * median, 9, m.crowded, "2026-01-02T03:04:05Z", "r1")  # fmt: skip
    return {m.key: dataclasses.replace(made, **changes)}


def verdict(m: Measurement, references=None, known=NOTHING, evidence=Evidence(), beside=()):  # noqa: B008
    return judge([m, *beside], references or {}, known, evidence)[0]


def test_reference_normal_slow_and_faster() -> None:
    found = verdict(measured(1.02), reference(measured()))
    assert (found.state, found.expected.basis) == (State.NORMAL, Basis.REFERENCE)
    assert found.times == pytest.approx(1.02) and not found.because
    found = verdict(measured(1.5), reference(measured()))
    assert (found.state, round(found.times, 3)) == (State.SLOW, 1.5)
    found = verdict(measured(0.5), reference(measured()))
    assert found.state is State.NORMAL and "for the better" in found.because
    assert "--save-reference" in found.remedy


def test_rate_is_slow_when_it_is_small() -> None:
    fast = measured(what=What.TRAIN, bytes=None, samples=tuple(100 * x for x in EXACT))
    assert verdict(fast, reference(fast, 100.0)).state is State.NORMAL
    slow = dataclasses.replace(fast, samples=tuple(50 * x for x in EXACT))
    found = verdict(slow, reference(fast, 100.0))
    assert (found.state, found.times) == (State.SLOW, 2.0)


def test_interval_that_reaches_normal_cannot_be_judged() -> None:
    wide = measured(samples=(0.0100, 0.0101, 0.0104, 0.0120, 0.0122, 0.0130, 0.0131))
    found = verdict(wide, reference(measured()))
    assert found.state is State.UNKNOWN and "reaches what is normal" in found.because
    assert "more repeats" in found.remedy


@pytest.mark.parametrize(
    ("cores", "load", "judged"),
    [(2, 0.1, True), (2, 1.9, False), (2, None, True), (64, 3.0, True), (64, 4.5, False), (0, 9.0, True)],
)  # fmt: skip
@pytest.mark.parametrize("times", [1.0, 1.5])
def test_nothing_is_judged_while_other_work_keeps_cores_busy(
    times: float, cores: int, load: float | None, judged: bool
) -> None:
    evidence = Evidence(cores=cores, load=load)
    found = verdict(measured(times), reference(measured()), evidence=evidence)
    usual = State.SLOW if times > 1 else State.NORMAL
    assert found.state is (usual if judged else State.UNKNOWN)
    if not judged:
        assert f"it kept {load} of {cores} cores busy" in found.because
        assert "--despite-load" in found.remedy
    wrong = verdict(measured(times, wrong=1), reference(measured()), evidence=evidence)
    assert wrong.state is State.WRONG
    asked = dataclasses.replace(evidence, despite_load=True)
    assert verdict(measured(times), reference(measured()), evidence=asked).state is usual


def of_lines(*lines: Measurement, references=None, known=NOTHING, evidence=Evidence()):  # noqa: B008
    made = judge(lines, references or {}, known, evidence)
    machine = Machine("demo", ("n1", "n2"), 2)
    return Validation("id", "2026-01-02T03:04:05+00:00", 1.0, "", machine, tuple(lines), made, evidence, known)  # fmt: skip


def unknown(count: int) -> list[Measurement]:
    return [measured(what=What.START, bytes=None, subject=str(n)) for n in range(count)]


def test_slow_by_a_bound_alone_with_most_lines_undecided_is_no_verdict_on_the_machine() -> None:
    known = Bounds(link=Bound(12.5e9, "card"))
    first = of_lines(measured(3), *unknown(27), known=known)
    assert [v.state for v in first.verdicts].count(State.SLOW) == 1
    assert exit_code(first) is ExitCode.DONE
    assert headline(first).startswith("1 of 28 lines could be judged: 1 is slow, ")
    assert "--save-reference" in headline(first)
    half = of_lines(measured(3), *unknown(1), known=known)
    assert exit_code(half) is ExitCode.BELOW_REFERENCE
    firm = of_lines(measured(3), *unknown(27), references=reference(measured()))
    assert exit_code(firm) is ExitCode.BELOW_REFERENCE
    assert headline(firm).startswith("1 of 28 lines is slow, ")


def test_headline_of_a_loaded_node_is_that_there_is_no_verdict() -> None:
    evidence = Evidence(cores=2, load=1.9, culprits=(Culprit("processor of n1", "slow", 1.4),))
    found = of_lines(measured(3), references=reference(measured()), evidence=evidence)
    assert headline(found) == "No verdict: other work is on the node: it kept 1.9 of 2 cores busy."
    assert exit_code(found) is ExitCode.DONE


@pytest.mark.parametrize(
    ("looks", "load"), [((), None), ((0.1,), 0.1), ((0, 0, 0, 1.0), 0.5), ((0.0, 1.0, 1.0), 1.0), ((0,) * 9 + (1.0,), 0.2)]
)  # fmt: skip
def test_load_is_that_of_the_busier_looks(looks: tuple[float, ...], load: float | None) -> None:
    assert load_of(looks) == load


@pytest.mark.parametrize(
    ("samples", "words"),
    [((), "0 repeats"), ((0.01,), "1 repeat;"), ((0.01,) * 4, "4 repeats"), ((0.0,) * 9, "no time, or forever")],
)  # fmt: skip
def test_too_few_or_impossible_samples_cannot_be_judged(
    samples: tuple[float, ...], words: str
) -> None:
    found = verdict(measured(samples=samples), reference(measured()))
    assert found.state is State.UNKNOWN and words in found.because


def test_wrong_answers_come_before_all_else() -> None:
    found = verdict(measured(wrong=2), reference(measured()))
    assert found.state is State.WRONG and "2 answers were wrong in 7 repeats" in found.because
    own = Evidence(mpis={"image": "MPICH 3.4"}, planned_mpi="Cray MPICH")
    found = verdict(measured(wrong=1, way=Way.IMAGE), evidence=own)
    assert "image's own MPI" in found.because


def test_nothing_to_hold_against_says_why_and_what_next() -> None:
    found = verdict(measured())
    assert found.state is State.UNKNOWN and found.expected is None
    assert "links is not known" in found.because and "--save-reference" in found.remedy
    for what, words in (
        (What.START, "a start"),
        (What.INPUT, "input"),
        (What.CHECKPOINT, "storage"),
    ):
        assert words in verdict(measured(what=what)).because


def test_bound_of_the_link_is_held() -> None:
    known = Bounds(link=Bound(12.5e9, "card"))  # 2 nodes: 64 MB each way, 5.12 ms
    found = verdict(measured(), known=known)
    assert (found.state, found.expected.basis) == (State.NORMAL, Basis.BOUND)
    assert found.expected.low == pytest.approx(5.12e-3)
    assert found.expected.value == pytest.approx(3 * 5.12e-3)
    assert verdict(measured(2), known=known).state is State.SLOW
    found = verdict(measured(1.6), known=known)  # 1.04 times three times the bound
    assert found.state is State.UNKNOWN and "too close for so rough a bound" in found.because
    found = verdict(measured(0.4), known=known)
    assert found.state is State.UNKNOWN and "faster than what should be possible" in found.because


def test_bounds_of_each_kind() -> None:
    def value(what: What, known: Bounds = BOUNDS, **changes) -> float | str:
        found = limit(measured(what=what, **changes), known)
        return found.value if isinstance(found, Bound) else found

    assert value(What.PINGPONG) == pytest.approx(64e6 / 12.5e9 + 1.6e-6)
    assert value(What.PINGPONG, bytes=8) == pytest.approx(1.6e-6, rel=1e-3)
    assert value(What.ALLREDUCE, nodes=8, ranks=64) == pytest.approx(
        2 * 7 / 8 * 64e6 / 12.5e9 + 3 * 1.6e-6
    )
    assert value(What.BROADCAST) == pytest.approx(64e6 / 12.5e9 + 1.6e-6)
    one = {"nodes": 1, "ranks": 4}
    assert value(What.ALLREDUCE, **one) == pytest.approx(2 * 4 * 64e6 / 180e9)
    assert value(What.BROADCAST, **one) == pytest.approx(4 * 64e6 / 180e9)
    assert value(What.PINGPONG, **one) == pytest.approx(2 * 64e6 / 180e9)
    assert "caches" in value(What.ALLREDUCE, bytes=4096, **one)
    assert "too short" in value(What.PINGPONG, Bounds(link=Bound(1e10, "x")), bytes=64)
    assert value(What.CHECKPOINT, Bounds(disk=Bound(2e9, "raid"))) == 2e9
    slow = measured(what=What.CHECKPOINT, samples=tuple(0.8e9 * x for x in EXACT))
    assert verdict(slow, known=Bounds(disk=Bound(2e9, "raid"))).state is State.SLOW


def test_bounds_of_a_site_are_those_of_its_profile() -> None:
    found = of_site(load_site("alps", {}))
    assert found.link and found.link.value == 24e9 and "alps" in found.link.source
    assert found.latency and found.latency.value == pytest.approx(2.3e-6)
    assert of_site(load_site("laptop", {})) == Bounds()
    lumi = of_site(load_site("lumi", {}))
    assert lumi.link and lumi.link.value == pytest.approx(
        12242.46e6
    )  # not that of the image's own MPI


def test_container_is_held_against_its_native_twin() -> None:
    twin = measured()
    near = verdict(measured(1.01, way=Way.CONTAINER), beside=[twin])
    assert (near.state, near.expected.basis) == (State.NORMAL, Basis.NATIVE)
    far = verdict(measured(1.3, way=Way.CONTAINER), beside=[twin])
    assert far.state is State.SLOW and far.times == pytest.approx(1.3)
    assert verdict(measured(1.3, way=Way.IMAGE), beside=[twin]).state is State.UNKNOWN
    other = dataclasses.replace(twin, launcher="srun")
    assert verdict(measured(1.3, way=Way.CONTAINER), beside=[other]).state is State.UNKNOWN


def test_container_that_its_bound_allows_must_still_be_as_fast_as_native() -> None:
    known = Bounds(link=Bound(12.5e9, "card"))
    found = verdict(measured(1.3, way=Way.CONTAINER), known=known, beside=[measured()])
    assert (found.state, found.expected.basis) == (State.SLOW, Basis.NATIVE)
    found = verdict(measured(1.0, way=Way.CONTAINER), known=known, beside=[measured()])
    assert (found.state, found.expected.basis) == (State.NORMAL, Basis.BOUND)


def test_noisy_native_twin_allows_its_noise() -> None:
    noisy = measured(samples=(0.0090, 0.0095, 0.0100, 0.0100, 0.0110, 0.0120, 0.0125))
    assert verdict(measured(1.2, way=Way.CONTAINER), beside=[noisy]).state is State.NORMAL


def test_crowded_ranks_are_held_against_crowded_references_only() -> None:
    crowd = measured(1.5, crowded=True)
    assert verdict(crowd, reference(crowd)).state is State.SLOW
    assert verdict(crowd, reference(crowd, crowded=False)).state is State.UNKNOWN
    found = verdict(crowd, known=Bounds(link=Bound(12.5e9, "card")))
    assert "share cores" in found.because and not found.remedy


def trained(ranks: int, rate: float, **changes) -> Measurement:
    base = Measurement(
        What.TRAIN, Way.NATIVE, tuple(rate * x for x in EXACT), ranks, 1, None, "net"
    )
    return dataclasses.replace(base, **changes)


def test_training_on_more_ranks_is_held_against_fewer() -> None:
    lines = [trained(1, 100), trained(2, 190), trained(4, 240)]
    states = [v.state for v in judge(lines, {}, NOTHING, Evidence())]
    assert states == [State.UNKNOWN, State.NORMAL, State.SLOW]
    super_linear = judge([trained(1, 100), trained(2, 260)], {}, NOTHING, Evidence())[1]
    assert super_linear.state is State.NORMAL
    for unfit in ({"crowded": True}, {"wrong": 1}, {"subject": "other"}, {"way": Way.IMAGE}):
        lines = [trained(1, 100, **unfit), trained(4, 100)]
        assert judge(lines, {}, NOTHING, Evidence())[1].state is State.UNKNOWN


# Each rule: what it needs to speak, and what silences it.

MESSAGES = measured()
ONE_NODE = measured(nodes=1)
TRAIN = Measurement(What.TRAIN, Way.NATIVE, EXACT, 64, 8, None, "net")


def test_rule_transport_needs_a_wrong_one_between_nodes() -> None:
    tcp = Evidence(transports={"native": "ofi: tcp"}, accepted=("cxi", "ugni"))
    found = diagnosis.transport(MESSAGES, tcp)
    assert found and "over ofi: tcp" in found.text and "cxi or ugni" in found.text
    assert diagnosis.transport(ONE_NODE, tcp) is None
    assert diagnosis.transport(measured(way=Way.CONTAINER), tcp) is None  # not seen there
    assert diagnosis.transport(MESSAGES, dataclasses.replace(tcp, accepted=("tcp",))) is None
    assert diagnosis.transport(MESSAGES, dataclasses.replace(tcp, accepted=())) is None
    assert diagnosis.transport(measured(what=What.START), tcp) is None


def test_rule_other_mpi_needs_another_than_planned() -> None:
    seen = Evidence(mpis={"image": "MPICH 3.4.3", "container": "MPICH 3.4.3", "native": "MPICH 5"})
    found = diagnosis.other_mpi(measured(way=Way.IMAGE), seen)
    assert found and "image's own MPI ran, MPICH 3.4.3, and not MPICH 5" in found.text
    assert diagnosis.other_mpi(measured(way=Way.CONTAINER), seen)
    assert diagnosis.other_mpi(MESSAGES, seen) is None
    same = dataclasses.replace(seen, planned_mpi="MPICH 3.4.3")
    assert diagnosis.other_mpi(measured(way=Way.CONTAINER), same) is None
    assert diagnosis.other_mpi(measured(way=Way.CONTAINER, what=What.CHECKPOINT), seen) is None


def test_rule_culprit_needs_one_that_takes_part() -> None:
    node = Culprit("node n7", "1.9 GB/s, the others 12.1", 6.4, ("n7",), 8)
    evidence = Evidence(culprits=(Culprit("node n6", "a little", 1.2, ("n6",), 7), node))
    found = diagnosis.culprit(TRAIN, evidence)
    assert found and "n7 is 6.4 × as slow" in found.text and "1.9 GB/s" in found.text
    assert diagnosis.culprit(dataclasses.replace(TRAIN, nodes=4), evidence) is None
    pair = measured(what=What.PINGPONG, hosts=("n0", "n7"))
    assert diagnosis.culprit(pair, evidence)
    assert diagnosis.culprit(dataclasses.replace(pair, hosts=("n0", "n1")), evidence) is None
    both = Evidence(culprits=(Culprit("path n1 - n7", "slow", 3.0, ("n1", "n7"), 7),))
    assert diagnosis.culprit(pair, both) is None
    assert diagnosis.culprit(dataclasses.replace(pair, hosts=("n1", "n7")), both)
    assert diagnosis.culprit(measured(ranks=1, nodes=1), evidence) is None


def test_rule_crowded_needs_more_ranks_than_cores() -> None:
    found = diagnosis.crowded(dataclasses.replace(ONE_NODE, ranks=4), Evidence(cores=2))
    assert found and "4 ranks of a node share 2 cores" in found.text
    assert diagnosis.crowded(measured(ranks=4, nodes=2), Evidence(cores=2)) is None
    assert diagnosis.crowded(measured(ranks=4, nodes=1, crowded=True), Evidence())
    assert diagnosis.crowded(measured(ranks=4, nodes=1), Evidence()) is None


def test_rule_doctor_needs_a_finding_that_touches_it() -> None:
    cma = Finding(
        Severity.WARNING, "ranks cannot read each other's memory", "", "yama 1", "sysctl", "cma"
    )
    evidence = Evidence(findings=(cma,))
    found = diagnosis.doctor(ONE_NODE, evidence)
    assert (
        found
        and "cannot read" in found.text
        and "yama 1" in found.text
        and found.remedy == "sysctl"
    )
    assert diagnosis.doctor(MESSAGES, evidence) is None  # between nodes
    assert diagnosis.doctor(measured(nodes=1, bytes=8), evidence) is None  # copied anyhow
    well = dataclasses.replace(cma, severity=Severity.OK)
    assert diagnosis.doctor(ONE_NODE, Evidence(findings=(well,))) is None
    worse = Finding(Severity.ERROR, "no room", "", "", "", "shared-memory")
    found = diagnosis.doctor(ONE_NODE, Evidence(findings=(cma, worse)))
    assert found and "no room" in found.text and found.remedy == "fairlead doctor shared-memory"


def test_rules_checks_are_doctors() -> None:
    from fairlead.doctor.registry import ordered

    assert set(diagnosis._CHECKS) <= {check.name for check in ordered()}


def test_rules_of_a_step_need_large_shares_and_the_larger_speaks() -> None:
    def shares(input: float, communication: float) -> Evidence:
        return Evidence(shares={TRAIN.key: Shares(input, communication)})

    samples = diagnosis.waits(TRAIN, shares(0.3, 0.1))
    assert samples and samples.text == "30 % of a step is waiting for samples"
    assert diagnosis.waits(TRAIN, shares(0.1, 0.0)) is None
    assert diagnosis.waits(TRAIN, shares(0.0, 0.2)) is None
    assert diagnosis.waits(MESSAGES, shares(0.9, 0.0)) is None
    assert diagnosis.reason(TRAIN, shares(0.3, 0.4)).text.startswith(
        "40 % of a step is communication"
    )


def test_rule_busy_needs_load() -> None:
    assert diagnosis.busy(MESSAGES, Evidence(cores=4, load=3.0))
    assert diagnosis.busy(MESSAGES, Evidence(cores=64, load=3.0)) is None
    assert diagnosis.busy(MESSAGES, Evidence(cores=4)) is None


def test_reason_first_of_several_and_none_without_evidence() -> None:
    every = Evidence(
        cores=1,
        transports={"native": "ofi: tcp"},
        accepted=("cxi",),
        culprits=(Culprit("node n1", "slow", 2.0),),
        clocks=(Clock("n1", throttled=3),),
        load=9.0,
    )
    crowd = measured(ranks=4)
    assert "over ofi: tcp" in diagnosis.reason(crowd, every).text
    every = dataclasses.replace(every, transports={})
    assert "node n1" in diagnosis.reason(crowd, every).text
    every = dataclasses.replace(every, culprits=())
    assert "share 1 core" in diagnosis.reason(crowd, every).text
    every = dataclasses.replace(every, cores=16)
    assert "slowed down for heat 3 times" in diagnosis.reason(crowd, every).text
    every = dataclasses.replace(every, clocks=())
    assert "kept 9.0 of 16 cores busy" in diagnosis.reason(crowd, every).text
    assert diagnosis.reason(crowd, Evidence()).text == "no known cause explains it"


def test_demo_bad_node_is_named_with_and_without_references() -> None:
    for references in (kept(), None):
        found = demo(references=references)
        slow = [v for v in found.verdicts if v.state is State.SLOW]
        assert len(slow) == 2 and exit_code(found) is ExitCode.BELOW_REFERENCE
        assert all("node nid001006 is 1.5 × as slow" in v.because for v in slow)
        said = "Node nid001006 is 1.5 × as slow as its like: 2 of 77 lines are slow, the worst 1."
        assert headline(found).startswith(said)
    well = demo(bad_node=None, references=kept())
    assert worst(well.verdicts) is State.NORMAL and exit_code(well) is ExitCode.DONE
    assert headline(well) == "As fast as it should be: 77 of 77 lines are normal."


def test_headline_counts_one_as_one() -> None:
    slow = measured(samples=(2.0,) * 6)
    one = demo(bad_node=None, repeats=6, steps=2)
    verdicts = [v for v in one.verdicts if v.state is State.NORMAL][:1]
    made = dataclasses.replace(one, verdicts=tuple(verdicts), measurements=(slow,))
    assert headline(made) == "As fast as it should be: 1 of 1 line is normal."
    bad = dataclasses.replace(verdicts[0], state=State.SLOW, times=1.82)
    made = dataclasses.replace(made, verdicts=(bad, *verdicts))
    assert headline(made) == "1 of 2 lines is slow, 1.8 × slower than it should be."


def test_headline_of_each_state() -> None:
    def said(measurements, evidence=Evidence(), references=None) -> str:  # noqa: B008
        found = judge(measurements, references or {}, NOTHING, evidence)
        return headline(
            Validation("i", "", 0, "", Machine("s", (), 1), tuple(measurements), found, evidence)
        )

    assert said([]).startswith("No verdict yet")
    assert said([measured()]).startswith("No verdict yet")
    assert said([measured(wrong=1)]).startswith("Wrong answers in 1 of 1 line:")
    bad = Evidence(culprits=(Culprit("node n7", "slow", 2.0),))
    assert said([measured()], bad).startswith("Node n7 is 2 × as slow as its like")
    assert "; 1 cannot be judged" in said([measured(), measured(bytes=8)], references=reference(measured()))  # fmt: skip
