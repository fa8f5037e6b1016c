"""Why a line of an access log is no row.

Owns the names of the problems and what they mean. Must not know how a line is judged (`lines`), counted (`ledger`) or
shown. Invariants: a line has at most one problem; nothing is imported, because Spark's workers and the page read these.
"""

from typing import Final

CORRUPT: Final = "corrupt"
UNKNOWN_VERSION: Final = "unknown-version"
UNKNOWN_TYPE: Final = "unknown-type"
INCOMPLETE: Final = "incomplete"
UNKNOWN_RESULT: Final = "unknown-result"
IMPLAUSIBLE_CLOCK: Final = "implausible-clock"
PROBLEMS: Final[dict[str, str]] = {
    CORRUPT: "not one JSON object of the schema's types, the torn last line of a crash among them",
    UNKNOWN_VERSION: "written by a schema version that this audit does not read",
    UNKNOWN_TYPE: "a type of line that this version does not have",
    INCOMPLETE: "a field that is always present is not, or `counts` do not add up to `partitions`",
    UNKNOWN_RESULT: "a result and reason that the table of results does not have",
    IMPLAUSIBLE_CLOCK: "a time stamp before 2020 or in the future",
}
