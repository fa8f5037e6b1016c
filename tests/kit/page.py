"""A page of the documents, read by a test that follows it word by word. [none]"""

from __future__ import annotations

import re
import time


def find_section(page: str, heading: str) -> str:
    """What stands below the heading that begins so, until the next one. Raises AssertionError where there is none."""
    _, _, below = page.partition(f"## {heading}")
    assert below, heading
    return re.split(r"^##+ ", below, maxsplit=1, flags=re.MULTILINE)[0]


def read_blocks(page: str, heading: str) -> list[str]:
    """The indented blocks of a section."""
    section = find_section(page, heading)
    found = re.findall(r"(?:^    .*\n|^\n(?=    ))+", section, re.MULTILINE)
    return [re.sub(r"^    ", "", block.strip("\n"), flags=re.MULTILINE) for block in found]


def read_yaml(page: str, heading: str) -> list[str]:
    """The blocks of YAML of a section."""
    return re.findall(r"^```yaml\n(.*?)^```", find_section(page, heading), re.DOTALL | re.MULTILINE)


class Watch:
    """How long each step took."""

    def __init__(self) -> None:
        self.begun = self.last = time.monotonic()
        self.rows: list[str] = []

    def note(self, step: str) -> None:
        """Give the time since the last step to this one."""
        now = time.monotonic()
        self.rows.append(f"| {step} | {now - self.last:.0f} |")
        self.last = now

    def format_table(self) -> str:
        """The steps, and all of them, as the documents have them."""
        rows = ["| step | s |", "| --- | --- |", *self.rows]
        return "\n".join([*rows, f"| all | {self.last - self.begun:.0f} |"])
