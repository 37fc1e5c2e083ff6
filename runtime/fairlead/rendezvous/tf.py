"""TensorFlow: ``tf.distribute.MultiWorkerMirroredStrategy``, which trains alone without TF_CONFIG, and does not say so.

Source: tensorflow/python/distribute/cluster_resolver/tfconfig_cluster_resolver.py.
"""

from __future__ import annotations

from fairlead.rendezvous.model import Framework

FRAMEWORK = Framework(
    name="tf",
    title="TensorFlow",
    variables={
        "TF_CONFIG": '{"cluster": {"worker": [$w_members]}, "task": {"type": "worker", "index": $w_rank}}',
    },
    why="MultiWorkerMirroredStrategy reads it",
    members=True,
)
