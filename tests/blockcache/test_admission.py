"""The admission rule: one row a case, the first column says what it is about."""

import pytest

from blockcache.admission import ENTERING, RULES, Admission, Edges, Run, plan_admission

BLOCK = 1000
NOTHING = Edges(-1, -1, -1, -1, -1, -1)
EXPECTED = Edges(500, 500, -1, -1, -1, -1)  # nothing stored, the tail is known
TAIL = Edges(100, 500, -1, -1, -1, 3)
HOLED = Edges(300, 500, 200, 300, -1, 3)  # [.., 200) and [300, 500) are stored
AGED = Edges(100, 500, -1, -1, 100, 3)  # below 100 the FIFO has let go
GONE = Edges(500, 500, -1, -1, 500, -1)  # all was let go

CASES = [
    ("no bytes", Run(500, 500, 0, acknowledged=True), TAIL, Admission.EMPTY),
    ("acknowledged at the tail", Run(500, 510, 99, acknowledged=True), TAIL, Admission.ACKNOWLEDGED),
    ("acknowledged, nothing known", Run(7, 9, 99, acknowledged=True), NOTHING, Admission.ACKNOWLEDGED),
    ("acknowledged beyond the tail", Run(600, 610, 99, acknowledged=True), TAIL, Admission.ACKNOWLEDGED),
    ("acknowledged late, below it", Run(90, 100, 99, acknowledged=True), TAIL, Admission.ACKNOWLEDGED),
    ("acknowledged, let go since", Run(90, 100, 99, acknowledged=True), AGED, Admission.EVICTED),
    ("acknowledged twice", Run(490, 500, 99, acknowledged=True), TAIL, Admission.STORED),
    ("starts at the tail", Run(500, 510, 99), TAIL, Admission.STARTS_AT_TAIL),
    ("a tail reader far below the HW", Run(500, 510, 99, False, 9000), TAIL, Admission.STARTS_AT_TAIL),
    ("starts inside the tail's last batch", Run(495, 510, 99), TAIL, Admission.STARTS_AT_TAIL),
    ("starts where the tail starts", Run(100, 510, 99), TAIL, Admission.STARTS_AT_TAIL),
    ("starts where the tail is expected", Run(500, 510, 99), EXPECTED, Admission.STARTS_AT_TAIL),
    ("starts one above the tail", Run(501, 510, 99, False, 511), TAIL, Admission.LAGGING),
    ("ends at the tail", Run(480, 500, 99, False, 500), TAIL, Admission.STORED),
    ("starts below the tail, ends above", Run(99, 510, 99, False, 511), TAIL, Admission.LAGGING),
    ("ends at the HW", Run(600, 700, 99, False, 700), TAIL, Admission.REACHES_HIGH_WATERMARK),
    ("ends above the HW", Run(600, 701, 99, False, 700), NOTHING, Admission.REACHES_HIGH_WATERMARK),
    ("ends one below the HW", Run(600, 699, 99, False, 700), NOTHING, Admission.LAGGING),
    ("ends at an HW of 0", Run(0, 1, 99, False, 0), NOTHING, Admission.REACHES_HIGH_WATERMARK),
    ("ends at the LSO", Run(600, 650, 99, False, 700, 650), TAIL, Admission.REACHES_LAST_STABLE_OFFSET),
    ("ends below both", Run(600, 649, 99, False, 700, 650), TAIL, Admission.LAGGING),
    ("neither is known", Run(600, 649, 99), NOTHING, Admission.LAGGING),
    ("the HW of what the FIFO let go", Run(400, 500, 99, False, 500), GONE, Admission.EVICTED),
    ("beyond what the FIFO let go", Run(400, 501, 99, False, 501), GONE, Admission.REACHES_HIGH_WATERMARK),
    ("fills a hole exactly", Run(200, 300, 99, False, 900), HOLED, Admission.FILLS_HOLE),
    ("fills a hole and overlaps", Run(190, 310, 99, False, 900), HOLED, Admission.FILLS_HOLE),
    ("a hole of one byte less than a block", Run(200, 300, 999, False, 900), HOLED, Admission.FILLS_HOLE),
    ("a hole of a block", Run(200, 300, 1000, False, 900), HOLED, Admission.HOLE_TOO_LARGE),
    ("fills a hole from above its left edge", Run(201, 300, 99, False, 900), HOLED, Admission.LAGGING),
    ("fills a hole but for its right edge", Run(200, 299, 99, False, 900), HOLED, Admission.LAGGING),
    ("a lagging reader", Run(50, 90, 99, False, 900), TAIL, Admission.LAGGING),
    ("a lagging reader, older than all", Run(50, 90, 99, False, 900), AGED, Admission.EVICTED),
]


@pytest.mark.parametrize(
    ("run", "edges", "expected"), [pytest.param(*case[1:], id=case[0]) for case in CASES]
)
def test_case(run: Run, edges: Edges, expected: Admission) -> None:
    assert plan_admission(run, edges, BLOCK) is expected


def test_every_reason_has_a_case_and_a_rule() -> None:
    assert {case[3] for case in CASES} == set(Admission) == {reason for reason, _ in RULES}


def test_entering_is_said_once() -> None:
    assert {reason for reason in Admission if reason.enters} == ENTERING
