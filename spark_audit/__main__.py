"""`forebay audit ...`: chooses the command.

Owns the names of the commands. Must not know their arguments. Invariants: a first word that is no command's name
belongs to the report, `forebay audit LOGS --out DIR`; a command's module is imported when it is asked for, so that
what it needs may be missing for the others.
"""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

COMMANDS: Final[dict[str, str]] = {
    "diff": "spark_audit.commands.diff",
    "ingest": "spark_audit.commands.ingest",
}
"""A command's name -> the module whose `main(arguments)` runs it and returns the exit code."""
REPORT: Final = "spark_audit.commands.report"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names (None: the process's arguments); returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    name = COMMANDS.get(given[0]) if given else None
    command = importlib.import_module(name or REPORT)
    return int(command.main(given[1:] if name else given))


if __name__ == "__main__":
    if sys.path[:1] == [str(Path(__file__).parent)]:
        del sys.path[
            0
        ]  # spark-submit runs this file by its path: `profile` here would hide Python's own
    sys.exit(main())
