"""Spark DataFrames, classic and Connect: the executors send and fetch the partitions.

The functions that executors run travel by value, with the modules of the protocol.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fairlead.base.errors import fail
from fairlead.bridge import arrow, streams, wire
from fairlead.bridge.arrow import Form, dense_rows
from fairlead.bridge.client.matrix import Matrix
from fairlead.bridge.errors import translated
from fairlead.bridge.streams import Fetching, Sending, Sent
from fairlead.bridge.wire import WireError

if TYPE_CHECKING:
    from fairlead.bridge.client.send import SendOptions
    from fairlead.bridge.client.session import Session

_ANSWER = "partition int, attempt long, rows long, place int, bytes long, serialise_s double, send_s double, receive_s double, partitions int, error string"
# Spark's own retry may not meet these; others are reported as rows, so that the driver can explain them.
_PASSING = ("lost", "unreachable", "refused", "silent", "checksum")


def send_spark(session: Session, frame: Any, options: SendOptions) -> Matrix:
    """Sends the rows of a DataFrame from its executors.

    The stage is a barrier stage where the cluster can run one: all partitions at once, and all again where one failed.

    Raises:
        FairleadError, WireError: the columns are none of numbers; a partition cannot be sent.
    """
    from fairlead.bridge.client.send import freed_quietly, summed

    _by_value()
    begun = time.perf_counter()
    names = list(options.columns or [n for n in frame.columns if n != options.index])
    chosen = frame.select(*names, *([options.index] if options.index else []))
    form, named = _form(chosen, names, options)
    index = _arrow_type(chosen, options.index) if options.index else None
    number = session.create(form, name=options.name, names=named, index=str(index or ""))
    sending = session.sending(number, form, index)
    spark, barrier = frame.sparkSession, _barrier(frame.sparkSession)
    slots = options.partitions or _slots(spark)
    try:
        with session.progress.stage(f"send {options.name or number}"):
            task = _sender(sending, options.index, slots, barrier)
            rows = chosen.coalesce(slots).mapInArrow(task, _ANSWER, barrier).collect()
        sent = _checked(rows)
        parts = rows[0]["partitions"] if rows else 0
        matrix = session.seal(number, sent, parts if barrier else None)
    except BaseException:
        freed_quietly(session, number)
        raise
    matrix.transfer = summed(sent, matrix.sealed_s, time.perf_counter() - begun)
    return matrix


def _checked(rows: list[Any]) -> list[Sent]:
    sent = []
    for row in rows:
        values = row.asDict()
        if error := values.pop("error"):
            reported = json.loads(error)
            raise translated(WireError(reported["id"], **reported["fields"]))
        del values["partitions"]
        sent.append(Sent(**values))
    return sent


def _form(chosen: Any, names: list[str], options: SendOptions) -> tuple[Form, list[str]]:
    """The form of the matrix, and the names of its columns."""
    kinds = {field.name: field.dataType for field in chosen.schema.fields}
    if len(names) == 1:
        kind = kinds[names[0]].simpleString()
        if kind.startswith("array<") or kind in ("vector", "udt"):
            first = chosen.select(names[0]).first()
            if first is None or first[0] is None:
                raise fail("bridge-empty", column=names[0])
            dtype = _dtype([kind[6:-1]], names) if kind.startswith("array<") else "float64"
            return options.form(len(first[0]), dtype), []
    return options.form(len(names), _dtype([kinds[n].simpleString() for n in names], names)), names


def _dtype(kinds: list[str], names: list[str]) -> str:
    known = {"float": "float32", "double": "float64", "bigint": "int64", "int": "int32", "smallint": "int32",
             "tinyint": "int32", "boolean": "int32"}  # fmt: skip
    for name, kind in zip(names, kinds, strict=False):
        if kind not in known:
            raise WireError("column-type", column=name, kind=kind)
    found = {known[kind] for kind in kinds}
    if len(found) == 1:
        return found.pop()
    return "int64" if found <= {"int32", "int64"} else "float64"


def _arrow_type(chosen: Any, column: str) -> Any:
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(chosen.schema[column].dataType)


def _barrier(spark: Any) -> bool:
    """A barrier stage cannot run while Spark changes the number of executors."""
    return str(spark.conf.get("spark.dynamicAllocation.enabled", "false")).lower() != "true"


def _slots(spark: Any) -> int:
    """How many tasks run at once; a barrier stage may not have more."""
    if hasattr(spark, "_jsparkSession"):
        return int(spark.sparkContext.defaultParallelism)
    from pyspark.sql.functions import spark_partition_id

    return int(spark.range(0, 1 << 20).select(spark_partition_id()).distinct().count())


def _sender(sending: Sending, index: str | None, slots: int, barrier: bool) -> Any:
    """The function that an executor runs on its partition."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import BarrierTaskContext, TaskContext

        context = BarrierTaskContext.get() if barrier else TaskContext.get()
        partition = context.partitionId()
        attempt = context.taskAttemptId()  # unique in the application, over stages and speculation
        parts = len(context.getTaskInfos()) if barrier else slots
        error = ""
        try:
            sent = sending.send(partition, parts, attempt, _chunks(batches, sending.form, index))
        except WireError as exc:
            if exc.check in _PASSING:
                raise
            sent, error = Sent(partition, attempt, 0, 0, 0), json.dumps(_as_row(exc))
        row = {**vars(sent), "partitions": parts, "error": error}
        kinds = [pa.int32(), pa.int64(), pa.int64(), pa.int32(), pa.int64(), *[pa.float64()] * 3,
                 pa.int32(), pa.string()]  # fmt: skip
        arrays = [pa.array([value], kind) for value, kind in zip(row.values(), kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, list(row))

    return run


def _as_row(exc: WireError) -> dict[str, Any]:
    """An error; the driver, which has the messages, makes a sentence of it."""
    fields = {k: v if isinstance(v, (int, float, str)) else str(v) for k, v in exc.fields.items()}
    return {"id": exc.check, "fields": fields}


def _chunks(batches: Iterator[Any], form: Form, index: str | None) -> Iterator[Any]:
    begin = 0
    for batch in batches:
        labels = None
        if index:
            labels = batch.column(batch.schema.get_field_index(index))
            batch = batch.drop_columns([index])
        if batch.num_rows:
            yield dense_rows(batch, form, begin), labels
        begin += batch.num_rows


def to_spark(session: Session, info: Mapping[str, Any], spark: Any) -> Any:
    """A DataFrame with a partition for each rank."""
    _by_value()
    fetching = session.fetching(info)
    item = {"float32": "float", "float64": "double", "int32": "int", "int64": "bigint"}
    fields = f"row array<{item[info['form']['dtype']]}>"
    if info["index"]:
        fields = f"index {_spark_type(info['index'])}, {fields}"
    places = len(info["counts"])
    return spark.range(0, places, 1, places).mapInArrow(_fetcher(fetching), fields)


def _spark_type(kind: str) -> str:
    known = {"int64": "bigint", "int32": "int", "double": "double", "float": "float", "string": "string",
             "large_string": "string", "bool": "boolean"}  # fmt: skip
    if kind not in known:
        raise fail("bridge-index-type", kind=kind, known=", ".join(known))
    return known[kind]


def _fetcher(fetching: Fetching) -> Any:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for place in batch.column(0).to_pylist():
                yield from fetching.batches(place)

    return run


def _by_value() -> None:
    from pyspark import cloudpickle

    for module in (wire, arrow, streams, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)
