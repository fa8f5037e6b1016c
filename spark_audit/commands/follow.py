"""`forebay audit LOGS --out DIR --follow`: the report again whenever the logs have grown, until a signal.

Owns the loop, its pace and its end. Must not know how lines are stored or computed. Invariants: a report is written
only from lines that are stored; a signal ends it between two steps with exit code 0, and a kill at any time loses
nothing; the report equals, byte for byte, the one that a single run over the same lines writes.
"""

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.commands.report import write_report
from spark_audit.console import EXIT_DONE, EXIT_FAILED, EXIT_NOT_READY, EXIT_USAGE, fail, say
from spark_audit.follow import CannotFollow, hold, read_followed
from spark_audit.ingest import WorkersUnready
from spark_audit.job import NothingToRead, Request, run
from spark_audit.line_table import TableError
from spark_audit.session import SPARK_ERRORS, NotReady, describe_spark_error, open_session
from spark_audit.storage import Listing, Store, StoreError
from spark_audit.units import show_bytes, show_duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def follow(
    request: Request,
    logs: Sequence[str],
    master: str | None,
    settings: dict[str, str],
    every_s: float,
) -> int:
    """Report until a signal asks for the end; returns the exit code. `logs` are looked through at each step."""
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in _SIGNALS}
    folder = Path(request.out) / "follow"
    try:
        with hold(folder):
            say(f"starting Spark for {show_bytes(request.inputs.size_bytes)} of logs")
            spark = open_session(master, request.inputs.size_bytes, settings)
            try:
                _loop(spark, request, logs, every_s, ended)
            finally:
                spark.stop()
    except (NotReady, WorkersUnready) as error:
        return fail(EXIT_NOT_READY, str(error))
    except (CannotFollow, TableError, StoreError, OSError) as error:
        return fail(EXIT_USAGE, str(error))
    except SPARK_ERRORS as error:
        return fail(EXIT_FAILED, describe_spark_error(error))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    say("ended; the same command goes on from here")
    return EXIT_DONE


def _loop(
    spark: "SparkSession",
    request: Request,
    logs: Sequence[str],
    every_s: float,
    ended: threading.Event,
) -> None:
    store, folder = Store(spark), Path(request.out) / "follow"
    seen: Listing | None = None
    while not ended.is_set():
        listing = store.list_logs(logs)
        if listing != seen:
            try:
                table = read_followed(spark, folder, logs, say)
                write_report(run(spark, request, say, table), store, str(request.out))
            except NothingToRead as error:
                say(f"{error}; waiting")
            seen = listing
            spark.catalog.clearCache()
        say(f"next look in {show_duration(every_s)}")
        ended.wait(every_s)
