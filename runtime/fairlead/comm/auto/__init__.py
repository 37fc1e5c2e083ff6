"""A serial script on many ranks, with no line changed: ``python3 -m fairlead.comm.auto SCRIPT ARGS…``.

Keras: what ``compile`` is given averages gradients, ``fit`` trains on this rank's part of the data, starts
from rank 0's weights and averages metrics. torch: optimizers average gradients and BatchNorm's statistics,
loaders that shuffle give this rank's part. Either: only rank 0 writes models, and prints. What cannot be shared
out is refused, before its first update: each rank would else train on all of the data, or a separate model,
without any sign of it.

Ranks must hold the same data to share them out: what a script does not seed comes out the same on all
(:mod:`~fairlead.comm.auto.seeds`), and what they hold is compared (:mod:`~fairlead.comm.auto.held`). A load waits for what
rank 0 saves (:mod:`~fairlead.comm.auto.files`).

A step of N ranks is one on a batch N times as large. The learning rate is left as it is.

:mod:`~fairlead.comm.auto.imports` patches a framework when the script imports it, by the module here that has the
framework's name; :mod:`~fairlead.comm.auto.others` has those that are refused.
"""
