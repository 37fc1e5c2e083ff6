"""Spark DataFrames, classic and Connect: the executors send and fetch the partitions.

The functions that executors run travel by value, with the modules of the protocol.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from fairlead.base.errors import FairleadError, fail
from fairlead.base.progress import Silent, Stage, human_bytes
from fairlead.bridge import arrow, streams, wire
from fairlead.bridge.arrow import Form, dense_rows, sparse_rows
from fairlead.bridge.client.matrix import Matrix
from fairlead.bridge.errors import translated
from fairlead.bridge.streams import PASSING, Fetching, Sending, Sent
from fairlead.bridge.wire import Endpoint, Secret, WireError

if TYPE_CHECKING:
    from fairlead.bridge.client.send import SendOptions
    from fairlead.bridge.client.session import Session

_ANSWER = "partition int, attempt long, rows long, place int, bytes long, serialise_s double, send_s double, receive_s double, cols int, error string"
_LOOK_S = 0.5
_ADAPTIVE = "spark.sql.adaptive.enabled"


def send_spark(session: Session, frame: Any, options: SendOptions) -> Matrix:
    """Sends the rows of a DataFrame from its executors.

    Tasks may fail, be repeated, or run twice: what a task returns names its attempt, and only the attempts that Spark
    counts become part of the matrix. So no barrier stage is needed, which Spark could not run with more partitions than
    cores, with dynamic allocation, or again after a failure.

    Raises:
        FairleadError, WireError: a column is not numeric; a partition cannot be sent.
    """
    from fairlead.bridge.client.send import freed_quietly, transferred

    begun = time.perf_counter()
    names = list(options.columns or [n for n in frame.columns if n != options.index])
    wanted = [*names, *([options.index] if options.index else [])]
    chosen = frame if wanted == frame.columns else frame.select(*wanted)
    form, named = _form(chosen, names, options)
    index = _arrow_type(chosen, options.index) if options.index else None
    number = session.create(
        form, name=options.name, names=named, index=str(index or ""), cols_later=not form.cols
    )
    sending = session.sending(number, form, index)
    if options.partitions:
        chosen = chosen.repartition(options.partitions)
    try:
        title = f"send {options.name or number}"
        with (
            session.progress.stage(title) as stage,
            _as_planned(frame.sparkSession),
            _shown(session, number, title, stage),
        ):
            partitions = options.partitions or _partitions(chosen)
            task = _sender(sending, options.index, partitions)
            sent = _checked(chosen.mapInArrow(task, _ANSWER).collect())
            if not form.cols and not any(part.rows for part in sent):
                raise fail("bridge-empty", column=names[0])
        matrix = session.seal(number, sent, partitions)
    except BaseException:
        freed_quietly(session, number)
        raise
    return transferred(matrix, "Spark", sent, time.perf_counter() - begun)


@contextmanager
def _shown(session: Session, matrix: str, title: str, stage: Stage) -> Iterator[None]:
    """Shows what has come to the ranks meanwhile: executors tell nobody before they have ended."""
    if isinstance(session.progress, Silent):
        yield
        return
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_S):
            with suppress(FairleadError):
                come = session.ask("arriving", matrix=matrix)
                stage.note(f"{title}: {come['rows']:,} rows, {human_bytes(come['bytes'])}")

    watcher = threading.Thread(target=look, name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@contextmanager
def _as_planned(spark: Any) -> Iterator[None]:
    """Keeps Spark from changing the number of partitions while a query runs."""
    before = spark.conf.get(_ADAPTIVE, "true")
    spark.conf.set(_ADAPTIVE, "false")
    try:
        yield
    finally:
        spark.conf.set(_ADAPTIVE, before)


def _partitions(frame: Any) -> int:
    """How many partitions a DataFrame has; by its plan, or under Connect by a query that reads no column."""
    if hasattr(frame, "_jdf"):
        return int(frame.rdd.getNumPartitions())
    from pyspark.sql.functions import spark_partition_id

    # Empty partitions have no row to be counted by.
    row = frame.select(spark_partition_id().alias("p")).groupBy().max("p").first()
    return int(row[0]) + 1 if row and row[0] is not None else 0


def _checked(rows: list[Any]) -> list[Sent]:
    sent = []
    for row in rows:
        values = row.asDict()
        if error := values.pop("error"):
            reported = json.loads(error)
            raise translated(WireError(reported["id"], **reported["fields"]))
        sent.append(Sent(**values))
    return sent


def _form(chosen: Any, names: list[str], options: SendOptions) -> tuple[Form, list[str]]:
    """The form of the matrix, and the names of its columns."""
    kinds = {field.name: field.dataType for field in chosen.schema.fields}
    if len(names) == 1:
        kind = kinds[names[0]].simpleString()
        if kind.startswith("array<"):  # how long its rows are is seen by the executors
            return options.form(0, _dtype([kind[6:-1]], names)), []
        if kind in ("vector", "udt"):
            first = chosen.select(names[0]).first()
            if first is None or first[0] is None:
                raise fail("bridge-empty", column=names[0])
            # The first vector decides: of a column of both kinds, the others are turned into its.
            sparse = hasattr(first[0], "indices")
            return options.form(len(first[0]), "float64", sparse=sparse), []
    return options.form(len(names), _dtype([kinds[n].simpleString() for n in names], names)), names


def _dtype(kinds: list[str], names: list[str]) -> str:
    known = {"float": "float32", "double": "float64", "bigint": "int64", "int": "int32", "smallint": "int32",
             "tinyint": "int32", "boolean": "int32"}  # fmt: skip
    for name, kind in zip(names, kinds, strict=False):
        if kind not in known:
            raise WireError("bridge-column-type", column=name, kind=kind)
    dtypes = {known[kind] for kind in kinds}
    if len(dtypes) == 1:
        return dtypes.pop()
    return "int64" if dtypes <= {"int32", "int64"} else "float64"


def _arrow_type(chosen: Any, column: str) -> Any:
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(chosen.schema[column].dataType)


def _sender(sending: Sending, index: str | None, partitions: int) -> Any:
    """The function that an executor runs on its partition."""
    code, given = _code(), asdict(sending)

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pickle

        yield from pickle.loads(code)(batches, given, index, partitions)

    return run


@cache
def _code() -> bytes:
    """:func:`_send_partition` with all that it needs: to pickle that takes longer than to send a small table."""
    _by_value()
    from pyspark import cloudpickle

    code: bytes = cloudpickle.dumps(_send_partition)
    return code


def _send_partition(
    batches: Iterator[Any], given: dict[str, Any], index: str | None, partitions: int
) -> Iterator[Any]:
    import pyarrow as pa
    from pyspark import TaskContext

    endpoints = tuple(Endpoint(**{**e, "address": tuple(e["address"])}) for e in given["endpoints"])
    parts = {"form": Form(**given["form"]), "secret": Secret(**given["secret"])}
    sending = Sending(**{**given, **parts, "endpoints": endpoints})
    context = TaskContext.get()
    partition = context.partitionId()
    attempt = context.taskAttemptId()  # unique in the application
    error = ""
    try:
        own, batches = _as_long(sending, batches)
        chunks = _chunks(batches, own.form, index, partition)
        sent = own.send(partition, partitions, attempt, chunks)
    except WireError as exc:
        # Spark's own retry may not meet these; others become rows that the driver explains.
        if exc.check in PASSING:
            raise
        sent, error = Sent(partition, attempt, 0, 0, 0), json.dumps(_as_row(exc))
    whole, real = pa.int64(), pa.float64()
    kinds = [pa.int32(), whole, whole, pa.int32(), whole, real, real, real, pa.int32(), pa.string()]
    row = {**vars(sent), "error": error}
    arrays = [pa.array([v], kind) for v, kind in zip(row.values(), kinds, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, list(row))


def _as_long(sending: Sending, batches: Iterator[Any]) -> tuple[Sending, Iterator[Any]]:
    """Where the number of columns is not known yet, that of the first row of a partition."""
    if sending.form.cols:
        return sending, batches
    for batch in batches:
        if batch.num_rows:
            cols = batch.column(0).value_lengths()[0].as_py() or 0  # null is refused with its row
            again = itertools.chain([batch], batches)
            return replace(sending, form=replace(sending.form, cols=cols)), again
    return sending, iter(())


def _as_row(exc: WireError) -> dict[str, Any]:
    """An error; the driver, which has the messages, makes a sentence of it."""
    fields = {k: v if isinstance(v, (int, float, str)) else str(v) for k, v in exc.fields.items()}
    return {"id": exc.check, "fields": fields}


def _chunks(batches: Iterator[Any], form: Form, index: str | None, partition: int) -> Iterator[Any]:
    begin = 0
    for batch in batches:
        labels = None
        if index:
            labels = batch.column(batch.schema.get_field_index(index))
            batch = batch.drop_columns([index])
        if batch.num_rows:
            try:
                rows: Any = (
                    sparse_rows(batch.column(0), form) if form.sparse else dense_rows(batch, form)
                )
            except WireError as exc:
                raise _placed(exc, begin, partition, index, labels) from None
            yield rows, labels
        begin += batch.num_rows


def _placed(
    exc: WireError, begin: int, partition: int, index: str | None, labels: Any
) -> WireError:
    """An error about a row of a batch, which says where a user finds the row."""
    row = exc.fields.get("row")
    if row is None:
        return exc
    if labels is not None and labels[row].is_valid:
        where = f"with {index} = {labels[row].as_py()}"
    else:
        where = f"{begin + row} of partition {partition}"
    return WireError(exc.check, **{**exc.fields, "row": where})


def to_spark(session: Session, info: Mapping[str, Any], spark: Any) -> Any:
    """A DataFrame with a partition for each rank."""
    _by_value()
    fetching = session.fetching(info, "Spark")
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
