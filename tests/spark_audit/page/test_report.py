"""The page needs nothing beside it, says what was found with what it is of, and shows nothing that there is not."""

import re
from dataclasses import replace
from html.parser import HTMLParser

from spark_audit.page.report import build_page
from spark_audit.units import show_bytes, show_ratio
from tests.spark_audit.conftest import Audited
from tests.spark_audit.page.sample import build_findings, build_ratio_row, build_sizing

POLICY = re.compile(
    r"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-[\w+/=]+'"
)


class References(HTMLParser):
    """Collects tags, ids and whatever is referred to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.policies: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data", "xlink:href"):
                self.references.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            if name == "content" and "script-src" in (value or ""):
                self.policies.append(value or "")


def test_the_page_refers_to_itself_alone() -> None:
    page = build_page(build_findings())
    seen = References(page)
    assert [reference.removeprefix("#") for reference in seen.references] == seen.ids
    assert len(seen.ids) == 17
    assert seen.tags.count("script") == 1 and not {"link", "iframe", "img"} & set(seen.tags)
    assert "url(" not in page and "@import" not in page and "http://" not in page
    (policy,) = seen.policies
    assert POLICY.fullmatch(policy)


def test_the_same_findings_are_the_same_bytes() -> None:
    assert build_page(build_findings()) == build_page(build_findings())


def test_numbers_stand_with_what_they_are_of() -> None:
    findings = build_findings()
    page, total = build_page(findings), findings.total
    assert show_ratio(total["hitRatioBytes"]) in page
    assert f"of {show_bytes(total['bytes'])} handed to clients" in page
    for size_bytes in findings.sizing.needed_bytes.values():
        assert f">{show_bytes(size_bytes)}</td>" in page
    assert "<th>hit ratio<small>% of bytes</small></th>" in page
    assert "1 of 2 comparisons agree exactly" in page
    assert "hit ratio, % of hits and misses, by bytes" in page


def test_a_policy_that_is_worth_nothing_is_neither_better_nor_worse() -> None:
    findings = build_findings()
    assert findings.what_if is not None
    today, other = findings.what_if.results[0], findings.what_if.results[3]
    worse = other._replace(hit_ratio=today.hit_ratio - 0.0004)
    page = build_page(replace(findings, what_if=findings.what_if._replace(results=(today, worse))))
    assert page.count(">0.0</td>") == 2
    assert ">-0.0</td>" not in page


def test_a_real_audit_has_every_section(audited: Audited) -> None:
    page = build_page(audited.findings)
    assert set(References(page).ids) >= {
        *(
            "what-to-change",
            "over-time",
            "cache-size",
            "by-topic",
            "worth-of-a-gib",
            "by-lag",
            "latency",
        ),
        *(
            "misses-and-passes",
            "by-client-id",
            "delays",
            "log-against-counters",
        ),
    }
    assert show_ratio(audited.findings.total["hitRatioBytes"]) in page


def test_what_came_from_a_log_is_escaped() -> None:
    evil = "<script>alert(1)</script>"
    row = build_ratio_row(5, 4, 3, clientId=evil, topic=evil, partition=evil)
    findings = replace(build_findings(), clients=[row], topics=[row], partitions=[row])
    page = build_page(findings)
    assert page.count("<script>") == 1 and page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 4


def test_of_what_there_is_none_nothing_is_drawn() -> None:
    findings = build_findings()
    hits = build_ratio_row(5_000_000, 0, 0)
    page = build_page(
        replace(
            findings,
            total=hits,
            totals=[row for row in findings.totals if row["result"] == "hit"],
            topics=[{**hits, "topic": "orders"}],
            clients=[],
            partitions=[],
            lag_bands=[],
            windows=[],
            latency=[],
            delays_by_client=[],
            delays_by_topic=[],
            counters=None,
            cache_size_bytes=None,
            problems={},
            sizing=build_sizing(0)._replace(never_bytes=5_000_000),
            reconciliations=[],
            groups=[],
            brokers=findings.brokers[:1],
            lag_times=[],
            topic_needs=[],
            diagnoses=[],
            ledger=None,
            what_if=None,
        )
    )
    assert "<svg" not in page
    assert References(page).ids == [
        *(
            "what-to-change",
            "cache-size",
            "by-topic",
            "misses-and-passes",
            "delays",
            "reads-spared",
        ),
        "the-log-itself",
    ]
    assert "No size can be recommended: of 4.77 MiB of hits and misses, no byte was stored" in page
    assert "No fault concerns 5.0 % or more of the bytes handed to clients." in page
    assert "memory answered every partition" in page and "No miss had to wait" in page
    assert 'class="miss"' not in page and "<th>miss" not in page and "<th>pass" not in page


def test_findings_say_cause_setting_effect_and_price() -> None:
    page = build_page(build_findings())
    assert '<p class="cause">The cache of 1.50 GiB is too small: 1.58 GiB of orders' in page
    assert (
        "Set <code>cache.size</code> to <code>7GiB</code>: hits grow from 74.1 % to 93.2 %" in page
    )
    assert "(costs 19.25 a month, saves reads for 61.00 a month)." in page
    assert "Client &lt;replay&gt;, which no consumer group shows" in page


def test_what_is_not_known_is_shaded_and_has_a_column() -> None:
    findings = build_findings()
    page = build_page(findings)
    assert "<polygon" in page and "<th>at most<small>% of hits and misses</small></th>" in page
    points = [point._replace(possible_bytes=point.hit_bytes) for point in findings.sizing.points]
    page = build_page(replace(findings, sizing=findings.sizing._replace(points=tuple(points))))
    assert "<polygon" not in page and "at most<small>" not in page


def test_the_cache_holds_as_much_time_on_its_card_as_in_the_curve() -> None:
    page = build_page(build_findings())
    (card,) = re.findall(r"of cache; holds ([^<]*) of production", page)
    (mark,) = re.findall(r"now: 1\.50 GiB, ([^<]*)<", page)
    assert card == mark == "8.5 min"
