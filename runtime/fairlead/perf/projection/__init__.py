"""Projection: from runs of a few ranks to thousands of nodes, with how sure that is.

    runs = small_runs.read(Path("small-runs.json"))
    target = fitting.Target(fabrics.given(None, None, fabrics.network("aries")))
    projection = fitting.fit(runs, target)
    for point in projection.curve(8192):
        print(point.nodes, point.efficiency)
    print(*answers.sentences(answers.answer(projection, 8192, keep=0.9)), sep="\\n")

:mod:`~fairlead.perf.projection.step_model` says what a step costs and by which formula, ``spread`` how stragglers grow,
``fabrics`` what is known of networks, ``small_runs`` what is measured, ``fitting`` how a band comes about, and ``answers``
turns the question round.
"""
