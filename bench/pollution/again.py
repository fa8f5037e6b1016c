"""What was disturbed is run again: a hypervisor that takes processors away is not what is measured.

Owns how often that may happen in a run, and what was set aside. Must not know which arms matter. Invariants: what
was set aside is kept, without its course in time, and told; when the run has no more patience a disturbed result
stands, and is invalid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.pollution.verdict import describe_stolen, is_disturbed

if TYPE_CHECKING:
    from collections.abc import Callable


class Again:
    """`times`: how often in all of the run. `say` is told each."""

    def __init__(self, times: int, say: Callable[[str], None]) -> None:
        self.set_aside: list[dict[str, Any]] = []
        self._times = times
        self._say = say

    def run(self, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `measure` gives undisturbed, or at last."""
        while True:
            figures = measure()
            if not is_disturbed(figures) or len(self.set_aside) >= self._times:
                return figures
            self.set_aside.append({key: value for key, value in figures.items() if key != "course"})
            self._say(f"set aside, again: {describe_stolen(figures)}")
