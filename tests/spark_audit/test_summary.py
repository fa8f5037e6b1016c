"""summary.json says what the findings say."""

import json

from spark_audit.summary import build_summary
from tests.spark_audit.conftest import Audited


def test_the_summary_is_json_and_holds_the_findings(audited: Audited) -> None:
    summary = json.loads(json.dumps(build_summary(audited.findings)))
    assert summary["fetches"]["hitBytes"] == audited.findings.total["hitBytes"]
    assert summary["log"]["unreadableLines"] == sum(audited.findings.problems.values())
    assert summary["sizing"]["neededBytes"]["0.99"] == audited.findings.sizing.needed_bytes[0.99]
    assert [row["agrees"] for row in summary["reconciliation"][0]["rows"]].count(False) > 0
    assert len(summary["log"]["incompleteFiles"]) == 1
