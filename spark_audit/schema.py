"""The access log's schema as Spark sees it, and what makes a line unreadable.

Owns the translation of `metrics.access_log_schema` (the one thing shared with the sidecar) into a StructType
and the problems a line can have. Must not know files, tables or the report. Invariants: the struct has every
field of every type of line once, all nullable, so that a line is judged and never an error; each line has
exactly one type or exactly one problem.
"""

from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from metrics.access_log_schema import LINE_TYPES, READ_VERSIONS, RESULTS, Field

CORRUPT: Final = "_corrupt"
PROBLEMS: Final[dict[str, str]] = {
    "corrupt": "not one JSON object of the schema's types, the torn last line of a crash among them",
    "unknown-version": "written by a schema version that this audit does not read",
    "unknown-type": "a type of line that this version does not have",
    "incomplete": "a field that is always present is not, or `counts` do not add up to `partitions`",
    "unknown-result": "a result and reason that the table of results does not have",
    "implausible-clock": "a time stamp before 2020 or in the future",
}
_SPARK_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "integer": LongType(),
    "number": DoubleType(),
}


def build_line_struct() -> StructType:
    """One struct for every type of line."""
    fields: dict[str, Field] = {
        field.name: field for fields in LINE_TYPES.values() for field in fields
    }
    return StructType([StructField(field.name, _type_of(field)) for field in fields.values()])


def build_text_struct() -> StructType:
    """`build_line_struct`, with CORRUPT for the text that does not fit."""
    return StructType([*build_line_struct(), StructField(CORRUPT, StringType())])


def _type_of(field: Field) -> DataType:
    if field.json_type != "array":
        return _SPARK_TYPES[field.json_type]
    elements = [StructField(one.name, _type_of(one)) for one in field.elements]
    return ArrayType(StructType(elements) if elements else LongType())


def build_problem() -> Column:
    """One of PROBLEMS for a parsed line, null for a good one. The version is judged first."""
    problem = F.when(~F.col("v").isin(*READ_VERSIONS), "unknown-version")
    problem = problem.when(
        F.col(CORRUPT).isNotNull() | F.col("v").isNull() | F.col("type").isNull(), "corrupt"
    )
    problem = problem.when(~F.col("type").isin(*LINE_TYPES), "unknown-type")
    for line_type, fields in LINE_TYPES.items():
        missing = [
            F.col(field.name).isNull() & (F.col("v") >= field.since)
            for field in fields
            if not field.nullable
        ]
        problem = problem.when((F.col("type") == line_type) & _any(missing), "incomplete")
    problem = problem.when((F.col("type") == "empty") & ~_adds_up(), "incomplete")
    known = [
        (F.col("result") == result) & F.col("reason").isin(*reasons)
        for result, reasons in RESULTS.items()
    ]
    has_result = F.col("type").isin("fetch", "empty")
    return problem.when(has_result & ~_any(known), "unknown-result")


def _adds_up() -> Column:
    """Whether the counts of an `empty` line are its partitions; false where an element lacks a field."""
    counted = F.aggregate(
        "counts",
        F.lit(0).cast("long"),
        lambda total, one: total + one["responses"] * F.size(one["partitions"]),
    )
    return F.coalesce(counted == F.col("partitions"), F.lit(False))


def _any(conditions: list[Column]) -> Column:
    return reduce(lambda left, right: left | right, conditions)
