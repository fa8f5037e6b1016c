"""What the commands of `forebay audit` share: messages, exit codes and the types of arguments.

Owns the text on stderr, the numbers of the exit codes and what a size or a time on the command line may be. Must not
know what a command does. Invariants: a message is one line that names the program; a wrong argument says what would
be right.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from spark_audit.units import scan_size

EXIT_DONE, EXIT_NOT_READY, EXIT_USAGE, EXIT_NOTHING, EXIT_FAILED = 0, 1, 2, 3, 4
EXIT_CODES: Final = (
    "exit codes: 0 done, 1 Java or a package is missing, 2 wrong arguments, 3 nothing to read,"
    " 4 Spark failed"
)


def say(text: str) -> None:
    """One line on stderr, at once."""
    sys.stderr.write(f"forebay audit: {text}\n")
    sys.stderr.flush()


def fail(code: int, text: str) -> int:
    """Say `text`; returns `code`."""
    say(text)
    return code


def describe_missing(modules: Sequence[str]) -> str | None:
    """Says which of `modules` are not installed, and what brings them; None if all are there."""
    missing = [name for name in modules if find_spec(name) is None]
    if not missing:
        return None
    return f"{' and '.join(missing)} is not installed: pip install {' '.join(missing)}"


def size_argument(text: str) -> int:
    """Bytes of a size such as 512MiB, above 0. ArgumentTypeError: anything else."""
    try:
        size_bytes = scan_size(text)
    except ValueError:
        size_bytes = 0
    if size_bytes <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 512MiB")
    return size_bytes


def seconds_argument(text: str) -> float:
    """Seconds from a millisecond to a year. ArgumentTypeError: anything else."""
    try:
        time_s = float(text)
    except ValueError:
        time_s = 0
    if not 0.001 <= time_s <= 366 * 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0.001 to a year")
    return time_s


def amount_argument(text: str) -> float:
    """A price, at least 0. ArgumentTypeError: anything else."""
    try:
        amount = float(text)
    except ValueError:
        amount = -1
    if not 0 <= amount < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} is no price such as 2.5")
    return amount


def setting_argument(text: str) -> tuple[str, str]:
    """Key and value of `spark.key=value`. ArgumentTypeError: anything else."""
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise argparse.ArgumentTypeError(f"{text!r} is no setting such as spark.driver.memory=4g")
    return key, value


def add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    """Where Spark runs, and its settings. Under spark-submit its own arguments hold."""
    parser.add_argument(
        "--master",
        metavar="URL",
        help="Spark master (default: spark-submit's, else spark-defaults.conf's, else this machine's cores)",
    )
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        type=setting_argument,
        metavar="KEY=VALUE",
        help="a setting of Spark, such as spark.driver.memory=4g; may be given often",
    )
