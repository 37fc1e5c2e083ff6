"""Spark's standalone cluster in this process's container: a master, and a worker on each of two addresses of this machine."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

HOSTS = ("127.0.0.1", "127.0.0.2")  # to Spark two machines: it speculates on another one only
_CLASSES = "org.apache.spark.deploy"


@contextmanager
def _started(log: Path, host: str, *words: str) -> Iterator[Path]:
    program = Path(pyspark.__file__).parent / "bin/spark-class"
    env = {**os.environ, "SPARK_LOCAL_IP": host, "SPARK_NO_DAEMONIZE": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen([program, *words], env=env, stdout=out, stderr=out)
    try:
        yield log
    finally:
        process.terminate()
        process.wait()


def _said(log: Path, words: str) -> str:
    """The rest of the line that says so."""
    with subprocess.Popen(["tail", "-n+1", "-f", log], stdout=subprocess.PIPE, text=True) as tail:
        line = next(line for line in tail.stdout if words in line)
        tail.kill()
    return line.partition(words)[2].strip()


@contextmanager
def standalone() -> Iterator[str]:
    """The cluster's URL."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        common = ("--port", "0", "--webui-port", "0", "--host")
        words = (f"{_CLASSES}.master.Master", *common, HOSTS[0])
        master = stack.enter_context(_started(folder / "master", HOSTS[0], *words))
        url = _said(master, "Starting Spark master at ")
        for host in HOSTS:
            own = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / host), url)
            words = (f"{_CLASSES}.worker.Worker", *common, host, *own)
            worker = stack.enter_context(_started(folder / f"worker-{host}", host, *words))
            _said(worker, "Successfully registered with master ")
        yield url


def builder(**more: str) -> SparkSession.Builder:
    """A session with small batches, on this machine's own address."""
    settings = {
        "spark.ui.enabled": "false", "spark.driver.host": HOSTS[0], "spark.driver.bindAddress": HOSTS[0],
        "spark.sql.execution.arrow.maxRecordsPerBatch": "300", "spark.task.maxFailures": "4",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0", **more,
    }  # fmt: skip
    made = SparkSession.builder
    for name, value in settings.items():
        made = made.config(name, value)
    return made
