"""Only what was disturbed runs again, and not for ever."""

from typing import Any

from bench.pollution.again import Again


def build(stolen: float) -> dict[str, Any]:
    return {"round": 1, "arm": "forebay", "stolen": {"quiet": stolen}, "course": {"util": [1.0]}}


def test_what_was_disturbed_is_set_aside_until_patience_ends() -> None:
    said: list[str] = []
    again = Again(2, said.append)
    shares = iter((0.0, 0.02, 0.005, 0.3, 0.5))
    found = [again.run(lambda: build(next(shares)))["stolen"]["quiet"] for _ in range(3)]
    assert found == [0.0, 0.005, 0.5]
    assert [one["stolen"]["quiet"] for one in again.set_aside] == [0.02, 0.3]
    assert "course" not in again.set_aside[0]
    assert len(said) == 2
    assert "2.0% (quiet)" in said[0]
