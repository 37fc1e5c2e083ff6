"""Finds where a loss or gradient that is not finite comes from: rank, host, tensor, and the file if it is in the data."""

from __future__ import annotations

import math
import socket
import time
from typing import Any

import numpy as np

from fairlead.base.errors import FairleadError, fail
from fairlead.comm import Comm
from fairlead.comm.frameworks import common
from fairlead.ml.data.samples import Array, Samples
from fairlead.ml.data.shards import Rows, read
from fairlead.ml.train.steps import Steps

_LOOK_S = 20.0  # for how long a rank looks through its files


def error(
    ranks: Comm, step: int, own: Array, steps: Steps, gradients: Any, batch: Samples, rows: Rows
) -> FairleadError:
    """The error that names the first rank whose loss or gradients are not finite. Collective; the same on all ranks.

    Args:
        step: the current step, from 0.
        own: loss and norm of the gradients of this rank, shape (2,).
        gradients: this rank's, of ``batch``.
        rows: the rows that the batch is from.
    """
    mine = {"own": tuple(map(float, own)), "host": socket.gethostname(), "why": ""}
    if not np.isfinite(own).all():
        odd = steps.odd(gradients)
        tensor = f"the first such gradient is that of {odd}" if odd else ""
        mine["why"] = "; ".join(filter(None, (tensor, _data(batch, rows))))
    every = common.broadcast_object(ranks, ranks.gather(mine), 0)
    # If all are finite and their mean is not, the sum overflowed: rank 0 is named.
    rank = next((r for r, each in enumerate(every) if not all(map(math.isfinite, each["own"]))), 0)
    (loss, norm), culprit = every[rank]["own"], every[rank]
    name = "gradient" if math.isfinite(loss) else "loss"
    more = f"; {culprit['why']}" if culprit["why"] else ""
    return fail(
        "loss-not-finite-in-data" if "samples" in more else "loss-not-finite-in-training",
        name=name,
        rank=rank,
        step=step + 1,
        host=culprit["host"],
        loss=loss,
        norm=norm,
        more=more,
    )


def _data(batch: Samples, rows: Rows) -> str:
    """How many samples of the batch are not finite, and the rank's first file with such a value; "" if all are."""
    bad = _bad(batch)
    if not bad:
        return ""
    counted = f"{bad} of {len(batch)} samples that it read have a NaN or an infinity"
    late = time.monotonic() + _LOOK_S
    for span in rows.spans:
        if time.monotonic() > late:
            break
        if _bad(read(span)):
            return f"{counted}, as {span.path} has"
    return counted


def _bad(samples: Samples) -> int:
    """How many samples have a value, or a target, that is not finite."""
    odd = np.zeros(len(samples), bool)
    for values in (samples.inputs, samples.targets):
        if np.issubdtype(values.dtype, np.floating):
            odd |= ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    return int(odd.sum())
