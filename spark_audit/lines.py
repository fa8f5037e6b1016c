"""From bytes of an access log to typed columns and judged lines.

Owns the reading of lines of every version: a vectorised scan of lines in the writer's own form, Arrow's JSON reader
for other valid lines, and one judgement, line by line, of the rest. Must not know files, Spark or tables: Spark's
workers run it, so it imports numpy, Arrow, the schema and names only. Invariants: the first two accept lines and never
judge them; each line is one good row or has exactly one problem, but for a `response` line, which is a row of type
`fetch` for each of its partitions; the scan accepts a line only if it has compared each of its bytes.
"""

import json
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from metrics.access_log_schema import (
    ANSWER_FIELDS,
    FETCH_FIELDS,
    LINE_TYPES,
    PARTITION_FIELDS,
    READ_VERSIONS,
    RESPONSE_SINCE,
    RESULTS,
    ROW_TYPES,
    Field,
)
from spark_audit.problems import (
    CORRUPT,
    IMPLAUSIBLE_CLOCK,
    INCOMPLETE,
    UNKNOWN_RESULT,
    UNKNOWN_TYPE,
    UNKNOWN_VERSION,
)

RESPONSE: Final = "response"
EARLIEST_MS: Final = 1_577_836_800_000
"""2020-01-01: no Forebay ran before."""
_MAX_DIGITS: Final = 18
_MAX_FIELDS: Final = max(map(len, LINE_TYPES.values()))
_TYPE_AT: Final = len('{"v":1,"type":"')
_VERSION_AT: Final = len('{"v":')
_ARROW_TYPES: Final = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64()}
_PYTHON_TYPES: Final = {"string": (str,), "integer": (int,), "number": (int, float)}

Numbers = Any
"""A numpy array."""


class GoodRows(NamedTuple):
    """Rows of good lines of one type: a column for each of its fields, and the number of each row's line in the chunk,
    from 0. The rows of one line follow each other.
    """

    line_type: str
    columns: dict[str, Any]
    numbers: Numbers


class BadLine(NamedTuple):
    """A line that has no row: its number within the chunk from 0, its problem, and how it begins."""

    number: int
    problem: str
    text: str


class ScannedChunk(NamedTuple):
    """All lines of a chunk: each in one of `good` or in `bad`."""

    lines: int
    good: list[GoodRows]
    bad: list[BadLine]


class _Layout(NamedTuple):
    """The form of lines of one type and version: those without an array, and `response` lines up to theirs."""

    version: int
    line_type: str
    fields: tuple[Field, ...]
    prefixes: tuple[bytes, ...]


def arrow_type(field: Field) -> Any:
    """The Arrow type of a field's values."""
    if field.json_type != "array":
        return _ARROW_TYPES[field.json_type]
    if not field.elements or field.are_rows:
        return pa.list_(pa.list_(pa.int64()) if field.are_rows else pa.int64())
    return pa.list_(pa.struct([(one.name, arrow_type(one)) for one in field.elements]))


@cache
def row_fields() -> dict[str, Field]:
    """Every field of every type of row, by name, in the schema's order."""
    return {field.name: field for fields in ROW_TYPES.values() for field in fields}


@cache
def _line_fields() -> dict[str, Field]:
    """Every field of every type of line, by name."""
    return {field.name: field for fields in LINE_TYPES.values() for field in fields}


def scan_chunk(chunk: bytes, latest_ms: int) -> ScannedChunk:
    """Scan whole lines, each with its newline. `latest_ms`: a later time stamp is implausible."""
    text = np.frombuffer(chunk, np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    starts = np.concatenate((np.zeros(1, ends.dtype), ends[:-1] + 1))
    good, rest = [], []
    long_enough = ends - starts > _TYPE_AT
    kinds = np.zeros(len(ends), np.int32)
    begins = starts[long_enough]
    kinds[long_enough] = text[begins + _VERSION_AT].astype(np.int32) << 8 | text[begins + _TYPE_AT]
    for kind in np.unique(kinds):
        index = np.flatnonzero(kinds == kind)
        layout = _layouts().get(int(kind))
        if layout is None:
            rest.append(index)
            continue
        part, begin, end = _gather(text, starts, ends, index)
        if layout.line_type == RESPONSE:
            columns, accepted, line_of = _scan_responses(part, begin, end, layout)
            good.append(GoodRows("fetch", columns, index[line_of]))
        else:
            columns, accepted = _scan_plain(part, begin, end, layout)
            good.append(GoodRows(layout.line_type, columns, index[accepted]))
        rest.append(index[~accepted])
    others = np.sort(np.concatenate(rest)) if rest else np.zeros(0, np.int64)
    more, bad = _read_others(chunk, starts, ends, others)
    checked = [_check_clock(rows, latest_ms) for rows in good + more]
    for rows, late in zip(good + more, checked, strict=True):
        numbers = np.unique(rows.numbers[late]).tolist()
        bad += [_bad(chunk, starts, ends, at, IMPLAUSIBLE_CLOCK) for at in numbers]
    kept = [_where(rows, ~late) for rows, late in zip(good + more, checked, strict=True)]
    bad.sort()
    return ScannedChunk(len(ends), [rows for rows in kept if len(rows.numbers)], bad)


def _check_clock(rows: GoodRows, latest_ms: int) -> Numbers:
    ts = rows.columns["ts"].to_numpy(zero_copy_only=False)
    return (ts < EARLIEST_MS) | (ts > latest_ms)


def _where(rows: GoodRows, mask: Numbers) -> GoodRows:
    if mask.all():
        return rows
    kept = pa.array(mask)
    columns = {name: column.filter(kept) for name, column in rows.columns.items()}
    return GoodRows(rows.line_type, columns, rows.numbers[mask])


def _bad(chunk: bytes, starts: Numbers, ends: Numbers, index: int, problem: str) -> BadLine:
    text = chunk[starts[index] : min(ends[index], starts[index] + 200)]
    return BadLine(index, problem, text.decode("utf-8", "replace"))


# --- lines in the writer's form


@cache
def _layouts() -> dict[int, _Layout]:
    """Version and first letter of the type -> the layout; other types with arrays have none."""
    found = {}
    for version in READ_VERSIONS:
        for line_type, fields in LINE_TYPES.items():
            present = tuple(field for field in fields if field.since <= version)
            if line_type == RESPONSE:
                if version < RESPONSE_SINCE:
                    continue
                present = present[:-1]
            if any(field.json_type == "array" for field in present) or line_type == "log":
                continue
            prefixes = [f'"{field.name}":'.encode() for field in present]
            prefixes[0] = b"{" + prefixes[0]
            letter = ord(str(version)) << 8 | ord(line_type[0])
            found[letter] = _Layout(version, line_type, present, tuple(prefixes))
    return found


def _gather(
    text: Numbers, starts: Numbers, ends: Numbers, index: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """The chosen lines one behind another with their begins and ends, and eight bytes more."""
    offsets = np.concatenate((starts, ends[-1:] + 1))
    lines = pa.Array.from_buffers(
        pa.large_binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )
    chosen = lines.take(pa.array(index))
    size = int((ends - starts + 1)[index].sum())
    part = np.zeros(size + 8, np.uint8)
    part[:size] = np.frombuffer(chosen.buffers()[2], np.uint8)[:size]
    lengths = (ends - starts)[index]
    end = np.cumsum(lengths + 1) - 1
    return part, end - lengths, end


def _scan_plain(
    text: Numbers, starts: Numbers, ends: Numbers, layout: _Layout
) -> tuple[dict[str, Any], Numbers]:
    """Columns of the accepted lines, and which those are. `text` has eight bytes behind the last line."""
    pieces = _FieldScan(text)
    columns, accepted = pieces.scan(starts, ends - 1, layout.fields, layout.prefixes)
    accepted &= text[ends - 1] == ord("}")
    accepted &= _is_of(columns, layout)
    if "reason" in columns:
        accepted &= _has_known_result(columns)
    if not accepted.all():
        kept = pa.array(accepted)
        columns = {name: column.filter(kept) for name, column in columns.items()}
    return columns, accepted


def _is_of(columns: dict[str, Any], layout: _Layout) -> Numbers:
    return _equals(columns["v"], layout.version) & _equals(columns["type"], layout.line_type)


class _FieldScan:
    """Pieces of a text that have a number of fields each, with commas between them."""

    def __init__(self, text: Numbers) -> None:
        """`text` has eight bytes behind the last piece."""
        self.text = text
        self.words = np.ndarray((len(text) - 7,), "<u8", text.data, strides=(1,))
        commas = np.flatnonzero(text == ord(","))
        beyond = np.full(_MAX_FIELDS, len(text) - 8, commas.dtype)
        self._commas = np.concatenate((commas, beyond))

    def scan(
        self,
        begin: Numbers,
        end: Numbers,
        fields: tuple[Field, ...],
        prefixes: tuple[bytes, ...],
    ) -> tuple[dict[str, Any], Numbers]:
        """A column for each field, and which pieces are as they should be. Other pieces have any values; they begin
        within the text, too.
        """
        separators = len(fields) - 1
        comma = np.searchsorted(self._commas, begin)
        fine = (self._commas[comma + separators] >= end) & (
            self._commas[comma + separators - 1] < end
        )
        columns: dict[str, Any] = {}
        last = begin - 1
        for place, (field, prefix) in enumerate(zip(fields, prefixes, strict=True)):
            first = last + 1
            last = end if place == separators else self._commas[comma + place]
            fine &= self.has(first, prefix)
            scan = _SCANS[field.json_type]
            first = np.minimum(first + len(prefix), last)
            values, is_fine = scan(self.text, self.words, first, last, field.nullable)
            fine &= is_fine
            columns[field.name] = values
        return columns, fine

    def has(self, first: Numbers, piece: bytes) -> Numbers:
        """Whether the bytes from `first` on are `piece`."""
        return _has_prefix(self.words, first, piece)


# --- lines of responses: a row for each partition

_HEAD_END: Final = b',"answers":'
_ANSWER_END: Final = b',"partitions":'
_ANSWER_HEAD: Final = ANSWER_FIELDS[:-1]
_ANSWER_PREFIXES: Final = tuple(
    f'{"" if place else "{"}"{field.name}":'.encode() for place, field in enumerate(_ANSWER_HEAD)
)
_NO_PREFIXES: Final = (b"",) * len(PARTITION_FIELDS)


def _scan_responses(
    text: Numbers, starts: Numbers, ends: Numbers, layout: _Layout
) -> tuple[dict[str, Any], Numbers, Numbers]:
    """Columns of the accepted lines' rows, which lines those are, and the line of each row. `text` has eight bytes
    behind the last line.

    Each `[` opens the answers, the partitions of an answer, or one partition, as the byte behind it says. A line is
    head, answers and partitions without anything between them but what this compares.
    """
    pieces = _FieldScan(text)
    opens = np.flatnonzero(text == ord("["))
    closes = np.append(np.flatnonzero(text == ord("]")), len(text) - 8)
    close = closes[np.searchsorted(closes, opens)]
    line = np.searchsorted(ends, opens)
    behind = text[opens + 1]
    is_answer, is_all = behind == ord("["), behind == ord("{")
    is_row = ~is_answer & ~is_all
    before, before_close = _shift(opens), _shift(close)
    after_all, after_answer, after_row = _shift(is_all), _shift(is_answer), _shift(is_row)
    is_first, is_last = np.ones(len(opens), bool), np.ones(len(opens), bool)
    is_first[1:] = is_last[:-1] = line[1:] != line[:-1]

    fine = np.where(is_all, is_first, ~is_first)
    fine &= ~is_answer | after_all | (after_row & pieces.has(before_close, b"]]},{"))
    next_row = after_row & (opens == before_close + 2) & pieces.has(before_close, b"],[")
    fine &= ~is_row | next_row | (after_answer & (opens == before + 1))
    ending = is_row & (close + 5 == ends[line]) & pieces.has(close, b"]]}]}")
    fine &= ~is_last | ending
    accepted = np.zeros(len(ends), bool)
    accepted[line[is_first]] = True

    head_end = starts.copy()
    head_end[line[is_first]] = opens[is_first]
    head_end -= len(_HEAD_END)
    heads, is_fine = pieces.scan(starts, head_end, layout.fields, layout.prefixes)
    accepted &= is_fine & pieces.has(head_end, _HEAD_END) & _is_of(heads, layout)

    begin = np.where(after_all, before + 1, before_close + 4)[is_answer]
    begin = np.minimum(begin, len(text) - 8)
    end = opens[is_answer] - len(_ANSWER_END)
    answers, is_fine = pieces.scan(begin, end, _ANSWER_HEAD, _ANSWER_PREFIXES)
    fine[is_answer] &= is_fine & pieces.has(end, _ANSWER_END) & _has_known_result(answers)

    partitions, is_fine = pieces.scan(
        opens[is_row] + 1, close[is_row], PARTITION_FIELDS, _NO_PREFIXES
    )
    fine[is_row] &= is_fine
    accepted[line[~fine]] = False

    line_of, answer_of = line[is_row], (np.cumsum(is_answer) - 1)[is_row]
    kept = accepted[line_of]
    if not kept.all():
        line_of, answer_of = line_of[kept], answer_of[kept]
        partitions = {name: one.filter(pa.array(kept)) for name, one in partitions.items()}
    return _build_rows(heads, line_of, answers, answer_of, partitions), accepted, line_of


def _shift(values: Numbers) -> Numbers:
    """Each element's predecessor; 0 for the first."""
    shifted = np.zeros_like(values)
    shifted[1:] = values[:-1]
    return shifted


def _build_rows(
    heads: dict[str, Any],
    line_of: Numbers,
    answers: dict[str, Any],
    answer_of: Numbers,
    partitions: dict[str, Any],
) -> dict[str, Any]:
    """Columns of `fetch` rows, from those of lines, answers and partitions: `line_of` and `answer_of` have the place of
    each row's.
    """
    lines, of_answers = pa.array(line_of), pa.array(answer_of)
    columns = {name: one.take(lines) for name, one in heads.items()}
    columns |= {name: one.take(of_answers) for name, one in answers.items()}
    columns |= partitions
    columns["type"] = pa.repeat("fetch", len(line_of))
    behind = pc.subtract(columns["highWatermark"], columns["offset"])
    columns["lag"] = pc.max_element_wise(behind, 0, skip_nulls=False)
    columns["delayMs"] = pc.divide(columns.pop("delayUs").cast(pa.float64()), 1000.0)
    return {field.name: columns[field.name] for field in FETCH_FIELDS if field.name in columns}


def _accept_answers(answers: Any) -> Numbers:
    """Which lines have only answers as they should be, and at least one partition in each."""
    accepted = pc.list_value_length(answers).fill_null(0).to_numpy(zero_copy_only=False) > 0
    line_of = pc.list_parent_indices(answers).to_numpy()
    found = answers.flatten()
    partitions = found.field("partitions")
    fine = found.is_valid().to_numpy(zero_copy_only=False)
    fine &= pc.list_value_length(partitions).fill_null(0).to_numpy(zero_copy_only=False) > 0
    fine &= _has_known_result({name: found.field(name) for name in ("result", "reason")})
    rows = partitions.flatten()
    lengths = pc.list_value_length(rows).fill_null(-1).to_numpy(zero_copy_only=False)
    is_whole = lengths == len(PARTITION_FIELDS)
    values = rows.filter(pa.array(is_whole)).flatten()
    is_valid = values.is_valid().to_numpy(zero_copy_only=False).reshape(-1, len(PARTITION_FIELDS))
    needed = [place for place, field in enumerate(PARTITION_FIELDS) if not field.nullable]
    is_whole[is_whole] = is_valid[:, needed].all(axis=1)
    fine[pc.list_parent_indices(partitions).to_numpy()[~is_whole]] = False
    accepted[line_of[~fine]] = False
    return accepted


def _as_rows(line_type: str, columns: dict[str, Any], numbers: Numbers) -> GoodRows:
    """The rows of accepted lines of one type."""
    if line_type == RESPONSE:
        return _unfold(columns, numbers)
    return GoodRows(line_type, columns, numbers)


def _unfold(columns: dict[str, Any], numbers: Numbers) -> GoodRows:
    """The rows of accepted `response` lines."""
    heads = {name: _combine(one) for name, one in columns.items()}
    answers = heads.pop("answers")
    found = answers.flatten()
    partitions = found.field("partitions")
    answer_of = pc.list_parent_indices(partitions).to_numpy()
    line_of = pc.list_parent_indices(answers).to_numpy()[answer_of]
    values, width = partitions.flatten().flatten(), len(PARTITION_FIELDS)
    by_field = {
        field.name: values.take(pa.array(np.arange(place, len(values), width)))
        for place, field in enumerate(PARTITION_FIELDS)
    }
    of_answers = {field.name: found.field(field.name) for field in _ANSWER_HEAD}
    rows = _build_rows(heads, line_of, of_answers, answer_of, by_field)
    return GoodRows("fetch", rows, numbers[line_of])


def _combine(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _equals(column: Any, value: object) -> Numbers:
    return pc.equal(column, value).to_numpy(zero_copy_only=False)


def _has_prefix(words: Numbers, first: Numbers, prefix: bytes) -> Numbers:
    """Whether the bytes from `first` on are `prefix`."""
    found = np.ones(len(first), bool)
    for at in range(0, len(prefix), 8):
        part = prefix[at : at + 8]
        mask = np.uint64((1 << 8 * len(part)) - 1)
        where = np.minimum(first + at, len(words) - 1)
        found &= words[where] & mask == np.uint64(int.from_bytes(part, "little"))
    return found


def _is_null(words: Numbers, first: Numbers, last: Numbers) -> Numbers:
    return (last - first == 4) & _has_prefix(words, first, b"null")


def _scan_integers(
    text: Numbers, words: Numbers, first: Numbers, last: Numbers, nullable: bool
) -> tuple[Any, Numbers]:
    """JSON's integers of at most _MAX_DIGITS digits; the rest is not fine."""
    null = _is_null(words, first, last) if nullable else np.zeros(len(first), bool)
    values, fine = _scan_digits(text, first, last, null)
    return pa.array(values, mask=null) if nullable else pa.array(values), fine


def _scan_numbers(
    text: Numbers, words: Numbers, first: Numbers, last: Numbers, nullable: bool
) -> tuple[Any, Numbers]:
    """Numbers with three decimals, as the writer has them. A quotient of two exact doubles is the nearest to the
    decimal, so it equals what any JSON reader makes of it.
    """
    null = _is_null(words, first, last) if nullable else np.zeros(len(first), bool)
    point = np.where(null, first, np.maximum(last - 4, first))
    whole, fine = _scan_digits(text, first, point, null)
    parts, are_fine = _scan_digits(text, np.minimum(point + 1, last), last, null, leading=True)
    fine &= are_fine & (null | ((text[point] == ord(".")) & (last - point == 4)))
    fine &= null | ((text[first] != ord("-")) & (whole < 1 << 40))
    values = (whole * 1000 + parts) / 1000
    return pa.array(values, mask=null), fine


def _scan_digits(
    text: Numbers, first: Numbers, last: Numbers, null: Numbers, leading: bool = False
) -> tuple[Numbers, Numbers]:
    """The integers between `first` and `last`, and which of them are ones; `leading`: zeros may lead, no sign may."""
    negative = text[first] == ord("-")
    if leading:
        negative[:] = False
    digits = np.where(null, 0, last - first - negative)
    fine = null | ((digits >= 1) & (digits <= _MAX_DIGITS))
    if not leading:
        fine &= null | (digits == 1) | (text[first + negative] != ord("0"))
    values = np.zeros(len(first), np.int64)
    widest, narrowest = int(digits.max(initial=0)), int(digits.min(initial=0))
    at, power = last - 1, 1
    for place in range(min(widest, _MAX_DIGITS)):
        digit = text[at] - np.uint8(ord("0"))
        if place >= narrowest:
            used = digits > place
            digit[~used] = 0
        fine &= digit <= 9
        values += digit.astype(np.int64) * power
        power *= 10
        at = np.maximum(at - 1, 0)
    np.negative(values, where=negative, out=values)
    return values, fine


def _scan_strings(
    text: Numbers, words: Numbers, first: Numbers, last: Numbers, nullable: bool
) -> tuple[Any, Numbers]:
    """Strings of printable ASCII without a quote or a backslash; the rest is not fine."""
    null = _is_null(words, first, last) if nullable else np.zeros(len(first), bool)
    fine = (last - first >= 2) & (text[first] == ord('"')) & (text[last - 1] == ord('"'))
    lengths = np.where(fine, last - first - 2, 0)
    offsets = np.zeros(len(first) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    total = int(offsets[-1])
    where = np.repeat((first + 1 - offsets[:-1]).astype(np.int32), lengths)
    where += np.arange(total, dtype=np.int32)
    data = text[where]
    strange = (data < 0x20) | (data > 0x7E) | (data == ord('"')) | (data == ord("\\"))
    if strange.any():
        owners = np.searchsorted(offsets, np.flatnonzero(strange), side="right") - 1
        fine[owners] = False
        data = np.where(strange, np.uint8(ord("?")), data)
    validity = None
    if null.any():
        validity = pa.py_buffer(np.packbits(~null, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(first), buffers), fine | null


_SCANS: Final = {"integer": _scan_integers, "number": _scan_numbers, "string": _scan_strings}


# --- other lines


def _read_others(
    chunk: bytes, starts: Numbers, ends: Numbers, index: Numbers
) -> tuple[list[GoodRows], list[BadLine]]:
    """Lines that the scan does not know: by Arrow's JSON reader if it accepts all of them, else one by one."""
    if not len(index):
        return [], []
    pieces = [chunk[starts[at] : ends[at] + 1] for at in index]
    table = _read_json(pieces)
    good: list[GoodRows] = []
    left = np.ones(len(index), bool)
    if table is not None:
        for line_type, fields in LINE_TYPES.items():
            kept = _accept(table, line_type, fields)
            if kept.any():
                rows = table.filter(pa.array(kept))
                columns = {field.name: rows.column(field.name) for field in fields}
                good.append(_as_rows(line_type, columns, index[kept]))
                left &= ~kept
    one_by_one, bad = _read_one_by_one(chunk, starts, ends, index[left])
    return good + one_by_one, bad


@cache
def _json_options() -> Any:
    schema = pa.schema([(name, arrow_type(field)) for name, field in _line_fields().items()])
    return arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")


def _read_json(pieces: list[bytes]) -> Any | None:
    """A table with a row for each line; None if there is any line that Arrow does not take for one object."""
    joined = b"\n" + b"".join(pieces)
    if not joined.isascii() or joined.count(b"\n{") < len(pieces):
        return None  # Arrow's reader crashes at lines such as `null"v"`
    try:
        table = arrow_json.read_json(
            pa.BufferReader(joined),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(joined) + 1),
            parse_options=_json_options(),
        )
    except pa.ArrowException:
        return None
    return table.combine_chunks() if table.num_rows == len(pieces) else None


def _accept(table: Any, line_type: str, fields: tuple[Field, ...]) -> Numbers:
    """Which rows are good lines of the type."""
    version = table.column("v")
    accepted = pc.and_(
        pc.equal(table.column("type"), line_type),
        pc.is_in(version, pa.array(READ_VERSIONS, pa.int64())),
    )
    accepted = pc.fill_null(accepted, False).to_numpy(zero_copy_only=False)
    if not accepted.any():
        return accepted
    for field in fields:
        if field.json_type == "number":  # NaN is not JSON, but Arrow takes it
            finite = pc.fill_null(pc.is_finite(table.column(field.name)), True)
            accepted &= finite.to_numpy()
        if not field.nullable:
            present = pc.is_valid(table.column(field.name)).to_numpy()
            accepted &= present | (version.fill_null(0).to_numpy() < field.since)
    columns = {name: table.column(name) for name in table.column_names}
    if any(field.name == "reason" for field in fields):
        accepted &= _has_known_result(columns)
    if line_type == "empty":
        accepted &= _adds_up(columns["counts"], columns["partitions"])
    if line_type == RESPONSE:
        accepted &= _accept_answers(_combine(columns["answers"]))
    return accepted


def _has_known_result(columns: dict[str, Any]) -> Numbers:
    known = [f"{result}/{reason}" for result, reasons in RESULTS.items() for reason in reasons]
    codes, names = [], []
    for name in ("result", "reason"):
        encoded = _combine(columns[name]).dictionary_encode()
        codes.append(encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(False))
        names.append([*encoded.dictionary.to_pylist(), None])
    table = np.array([[f"{one}/{two}" in known for two in names[1]] for one in names[0]], bool)
    found: Numbers = table[codes[0], codes[1]]
    return found


def _adds_up(counts: Any, partitions: Any) -> Numbers:
    """Whether the counts of `empty` lines are their partitions; false where an element lacks a field."""
    counts = counts.combine_chunks()
    elements = counts.flatten()
    named = pc.list_value_length(elements.field("partitions"))
    products = pc.multiply(elements.field("responses"), named.cast(pa.int64()))
    parents = pc.list_parent_indices(counts).to_numpy()
    sums = np.bincount(
        parents, products.fill_null(-1 << 40).to_numpy(zero_copy_only=False), len(counts)
    )
    found: Numbers = sums == partitions.fill_null(-1).to_numpy()
    return found


def _read_one_by_one(
    chunk: bytes, starts: Numbers, ends: Numbers, index: Numbers
) -> tuple[list[GoodRows], list[BadLine]]:
    by_type: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    bad = []
    for at in index.tolist():
        judged = judge_line(chunk[starts[at] : ends[at]])
        if isinstance(judged, str):
            bad.append(_bad(chunk, starts, ends, at, judged))
        else:
            by_type.setdefault(judged["type"], []).append((at, judged))
    good = []
    for line_type, found in by_type.items():
        columns = {
            field.name: pa.array([line.get(field.name) for _, line in found], arrow_type(field))
            for field in LINE_TYPES[line_type]
        }
        good.append(_as_rows(line_type, columns, np.array([at for at, _ in found])))
    return good, bad


def judge_line(text: bytes) -> dict[str, Any] | str:
    """A good line's fields, else its problem. The version is judged first."""
    try:
        line = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return CORRUPT
    if not isinstance(line, dict):
        return CORRUPT
    version = line.get("v")
    if isinstance(version, int) and version not in READ_VERSIONS:
        return UNKNOWN_VERSION
    if not all(_fits(line[name], field) for name, field in _line_fields().items() if name in line):
        return CORRUPT
    line_type = line.get("type")
    if version is None or line_type is None:
        return CORRUPT
    if line_type not in LINE_TYPES:
        return UNKNOWN_TYPE
    return _find_gap(line, version) or line


def _find_gap(line: dict[str, Any], version: int) -> str | None:
    for field in LINE_TYPES[line["type"]]:
        if not field.nullable and field.since <= version and line.get(field.name) is None:
            return INCOMPLETE
    if line["type"] == "empty" and not _counts_add_up(line):
        return INCOMPLETE
    if line["type"] == RESPONSE and not _answers_are_whole(line):
        return INCOMPLETE
    judged = line["answers"] if line["type"] == RESPONSE else [line]
    if line["type"] in (RESPONSE, "fetch", "empty") and not all(map(_is_known, judged)):
        return UNKNOWN_RESULT
    return None


def _is_known(one: dict[str, Any]) -> bool:
    """Whether the result has the reason."""
    return one["reason"] in RESULTS.get(one["result"], ())


def _answers_are_whole(line: dict[str, Any]) -> bool:
    """Whether a `response` line has all that its answers and their partitions need."""
    for answer in line["answers"]:
        if answer is None or not answer.get("partitions"):
            return False
        if answer.get("result") is None or answer.get("reason") is None:
            return False
        for row in answer["partitions"]:
            if row is None or len(row) != len(PARTITION_FIELDS):
                return False
            pairs = zip(row, PARTITION_FIELDS, strict=True)
            if any(value is None and not field.nullable for value, field in pairs):
                return False
    return bool(line["answers"])


def _counts_add_up(line: dict[str, Any]) -> bool:
    total = 0
    for count in line["counts"]:
        if count is None or count.get("responses") is None or count.get("partitions") is None:
            return False
        total += count["responses"] * len(count["partitions"])
    return bool(total == line["partitions"])


def _fits(value: object, field: Field) -> bool:
    """Whether a JSON value is of the field's type, or null."""
    if value is None:
        return True
    if field.json_type == "array":
        return isinstance(value, list) and all(_fits_element(one, field) for one in value)
    return _fits_plain(value, field.json_type)


def _fits_plain(value: object, json_type: str) -> bool:
    if isinstance(value, bool) or not isinstance(value, _PYTHON_TYPES[json_type]):
        return False
    return not isinstance(value, int) or -(1 << 63) <= value < 1 << 63


def _fits_element(value: object, field: Field) -> bool:
    if field.are_rows:
        return value is None or (
            isinstance(value, list)
            and all(one is None or _fits_plain(one, "integer") for one in value)
        )
    if not field.elements:
        return _fits_plain(value, "integer")
    if value is None:
        return True
    return isinstance(value, dict) and all(
        _fits(value[one.name], one) for one in field.elements if one.name in value
    )


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")
