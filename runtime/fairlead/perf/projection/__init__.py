"""Projection: from runs of a few ranks to thousands of nodes, with how sure that is.

    runs = read(Path("small-runs.json"))
    target = Target(given(None, None, network("aries")))
    projection = fit(runs, target)
    for point in projection.curve(8192):
        print(point.nodes, point.efficiency)
    print(*sentences(answer(projection, 8192, keep=0.9)), sep="\\n")

:mod:`~fairlead.perf.projection.step_model` says what a step costs and by which formula, ``spread`` how stragglers grow,
``fabrics`` what is known of networks, ``runs`` what is measured, ``fitting`` how a band comes about, ``answers`` turns
the question round, and ``published`` holds all of it against curves that others have measured.
"""

from fairlead.perf.projection.answers import Answers, answer, sentences
from fairlead.perf.projection.fabrics import NETWORKS, Known, Network, given, network, of_site
from fairlead.perf.projection.fitting import Band, Point, Projection, Target, fit
from fairlead.perf.projection.small_runs import SmallRun, read, small_runs_json
from fairlead.perf.projection.spread import Spread, Tail, excess
from fairlead.perf.projection.step_model import Fabric, Step, Work, step

__all__ = [
    "NETWORKS",
    "Answers",
    "Band",
    "Fabric",
    "Known",
    "Network",
    "Point",
    "Projection",
    "SmallRun",
    "Spread",
    "Step",
    "Tail",
    "Target",
    "Work",
    "answer",
    "excess",
    "fit",
    "given",
    "network",
    "of_site",
    "read",
    "sentences",
    "small_runs_json",
    "step",
]
