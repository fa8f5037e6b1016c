"""docs/messages.md has every warning and error of the code, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.message_texts import list_log_texts, list_problem_texts

PAGE = Path(__file__).parents[2] / "docs" / "messages.md"


def read_section(heading: str) -> dict[str, str]:
    """First column, without its signs, to the second one, of the tables below a heading."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ``?(.+?)``? \| (.+?) \|$", section, re.MULTILINE)
    return {text.strip(): meaning for text, meaning in rows}


@pytest.mark.parametrize(
    ("heading", "texts"),
    [
        ("Log lines", list_log_texts()),
        ("Configurations that contradict themselves", list_problem_texts()),
    ],
    ids=["log", "configuration"],
)
def test_the_page_has_every_message_and_no_other(heading: str, texts: set[str]) -> None:
    rows = read_section(heading)
    assert texts - rows.keys() == set(), "in the code alone"
    assert rows.keys() - texts == set(), "on the page alone"
    assert all(len(meaning) > 20 for meaning in rows.values())
