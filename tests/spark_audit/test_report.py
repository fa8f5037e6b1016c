"""The page needs nothing beside it, and says what summary.json says."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

from spark_audit.report import build_page
from spark_audit.summary import build_summary
from spark_audit.units import show_bytes, show_ratio
from tests.spark_audit.conftest import Audited


class References(HTMLParser):
    """Collects tags and whatever could be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [
            value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")
        ]


def test_the_page_is_self_contained_and_shows_every_plot(audited: Audited) -> None:
    page = build_page(audited.findings)
    references = References()
    references.feed(page)
    assert len(references.loaded) == 7
    assert all(uri.startswith("data:image/svg+xml;base64,") for uri in references.loaded)
    assert not {"script", "link", "iframe"} & set(references.tags)
    assert "url(" not in page and "@import" not in page


def test_the_page_says_the_main_numbers(audited: Audited) -> None:
    page, total = build_page(audited.findings), audited.findings.total
    assert show_ratio(total["hitRatioBytes"]) in page
    assert f"of {show_bytes(total['bytes'])} handed to clients" in page
    for size_bytes in audited.findings.sizing.needed_bytes.values():
        assert show_bytes(size_bytes) in page
    assert "log and counters differ" in page


def test_what_came_from_a_log_is_escaped(audited: Audited) -> None:
    row = {
        **audited.findings.clients[0],
        "clientId": "<script>alert(1)</script>",
        "topic": "$x^{<b>",
    }
    page = build_page(replace(audited.findings, clients=[row], topics=[row]))
    assert "<script>" not in page and "&lt;script&gt;" in page


def test_a_log_of_hits_alone_has_a_page_too(audited: Audited) -> None:
    hits = [row for row in audited.findings.totals if row["result"] == "hit"]
    page = build_page(
        replace(
            audited.findings,
            totals=hits,
            delays_by_client=[],
            delays_by_topic=[],
            counters=None,
            cache_size_bytes=None,
            problems={},
        )
    )
    assert len(re.findall("<img", page)) == 4
    assert "Log against counters" not in page


def test_the_summary_is_json_and_holds_the_findings(audited: Audited) -> None:
    summary = json.loads(json.dumps(build_summary(audited.findings)))
    assert summary["fetches"]["hitBytes"] == audited.findings.total["hitBytes"]
    assert summary["log"]["unreadableLines"] == sum(audited.findings.problems.values())
    assert summary["sizing"]["neededBytes"]["0.99"] == audited.findings.sizing.needed_bytes[0.99]
    assert [row["agrees"] for row in summary["reconciliation"]["rows"]].count(False) > 0
    assert len(summary["log"]["incompleteFiles"]) == 1
