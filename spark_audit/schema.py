"""The access log's schema as Spark sees it.

Owns the translation of `metrics.access_log_schema` (the one thing shared with the sidecar) into a StructType. Must not
know files, tables, the report, or how a line is judged (`lines`). Invariants: the struct has every field of every type
of row once, all nullable.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from metrics.access_log_schema import ROW_TYPES, Field

_SPARK_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "integer": LongType(),
    "number": DoubleType(),
}


def build_line_struct() -> StructType:
    """One struct for every type of row."""
    fields: dict[str, Field] = {
        field.name: field for fields in ROW_TYPES.values() for field in fields
    }
    return StructType([StructField(field.name, _type_of(field)) for field in fields.values()])


def _type_of(field: Field) -> DataType:
    if field.json_type != "array":
        return _SPARK_TYPES[field.json_type]
    elements = [StructField(one.name, _type_of(one)) for one in field.elements]
    return ArrayType(StructType(elements) if elements else LongType())
