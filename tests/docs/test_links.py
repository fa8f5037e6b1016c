"""Every link between the documents leads to a file, and to a heading of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    path
    for folder in ("docs", "deploy", "helm", ".")
    for path in (REPOSITORY / folder).glob("*.md" if folder == "." else "**/*.md")
)
PENDING = {"operators.md"}
"""Pages that are being written."""
LINK = re.compile(r"\]\(([^)\s]+)\)")


def read_anchors(page: Path) -> set[str]:
    """Anchors as GitHub makes them of headings: lower case, blanks to hyphens, no other signs."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in LINK.findall(text):
        if link in PENDING or link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in read_anchors(target), link
