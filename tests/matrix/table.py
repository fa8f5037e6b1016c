"""The matrix as a page of the documents (docs/clients.md).

Owns its wording. Outcomes in, Markdown out. Invariant: a cell that is not `equal` carries a number whose note stands
below; a client that was left out has a row that says so.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from tests.matrix.compare import EQUAL, NO
from tests.matrix.programme import EXACTLY_ONCE, STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.matrix.hits import Share
    from tests.matrix.run import Outcome

HEAD = """# Clients

Written by `make matrix`. Each client runs one programme twice, directly and through Forebay, and what it saw is
compared: every record (offset, key, value, headers, timestamp), committed offset, setting and error.
`=`: equal results; a note behind it says which part the client has not. *no*: the client cannot do it on either way.
"""
STEPS_HEAD = "## What the columns say\n\n"
TAIL_NOTE = """* **hits**: share of the record bytes of the tail reads that came from memory, plain and
  read_committed; the rest are a producer's first batches and the first read
* **sessions**: the most fetch sessions (KIP-227) that the client held with Forebay at once; 0: it does not use them

## How they are run

Topics have one replica; brokers have both group protocols switched on, and keep records that bear old times. Each
Java client is compiled against its own jars. librdkafka is run by confluent-kafka, 1.9 with the library that
confluent-kafka-go 1.9.2 carries. Codecs that a library takes from other packages are installed for it: cramjam for
aiokafka, lz4, python-snappy and zstandard for kafka-python, kafkajs-snappy, lz4-napi and zstd-codec for KafkaJS.
franz-go sends offsets in a transaction as raw requests: it has no call for that outside its group sessions. Kafka
Streams' clients are those of Java 4.3.
"""


class Notes:
    """Numbered notes, each text once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def refer(self, text: str) -> str:
        number = self._numbers.setdefault(text, len(self._numbers) + 1)
        return f"[{number}]"

    def lines(self) -> list[str]:
        return [f"{number}. {text}" for text, number in self._numbers.items()]


def show_share(share: Share) -> str:
    return "–" if share.share is None else f"{share.share:.0%}"


def build_row(outcome: Outcome, columns: Sequence[str], notes: Notes) -> str:
    """One client's row."""
    cells = [f"{outcome.client} ({outcome.version})"]
    if outcome.left_out:
        return "| " + " | ".join([*cells, f"left out {notes.refer(outcome.left_out)}"]) + " |"
    for column in columns:
        cell = outcome.cells.get(column)
        if cell is None:
            cells.append("")
        elif cell.verdict == EQUAL:
            cells.append(f"= {notes.refer(cell.note)}" if cell.note else "=")
        else:
            shown = "no" if cell.verdict == NO else f"**{cell.verdict}**"
            cells.append(f"{shown} {notes.refer(cell.note)}")
    cells += [show_share(outcome.tail), show_share(outcome.committed), str(outcome.sessions)]
    return "| " + " | ".join(cells) + " |"


def build_page(outcomes: Sequence[Outcome]) -> str:
    """The whole page."""
    notes = Notes()
    used = {step for outcome in outcomes for step in outcome.cells}
    titles = [(step.name, step.title) for step in STEPS if step.name in used]
    titles += [(EXACTLY_ONCE, "exactly once")] if EXACTLY_ONCE in used else []
    header = ["client", *(title for _, title in titles), "hits", "hits, committed", "sessions"]
    parts = [HEAD]
    for broker, rows in groupby(outcomes, key=lambda outcome: outcome.broker):
        table = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
        table += [build_row(outcome, [name for name, _ in titles], notes) for outcome in rows]
        parts.append(f"## Broker {broker}\n\n" + "\n".join(table) + "\n")
    if lines := notes.lines():
        parts.append("## Notes\n\n" + "\n".join(lines) + "\n")
    explained = [f"* **{step.title}**: {step.says}" for step in STEPS if step.name in used]
    if EXACTLY_ONCE in used:
        explained.append(
            "* **exactly once**: Kafka Streams' own step, with `exactly_once_v2`: counts by key, over a repartition "
            "topic and a changelog, by one instance and then another that restores its state; its tail reads are "
            "read_committed"
        )
    parts.append(STEPS_HEAD + "\n".join(explained) + "\n" + TAIL_NOTE)
    return "\n".join(parts)
