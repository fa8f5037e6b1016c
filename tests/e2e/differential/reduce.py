"""Smaller requests than one that shows a difference, and what is unusual about a request.

Owns what "smaller" means. Must not know who is asked.
"""

from __future__ import annotations

from tests.e2e.differential.cases import Case, Wanted

LONG_MS = 60_000


def simpler(case: Case) -> list[Case]:
    """Requests that say one thing less, and do not wait for ever."""
    found = [
        case._replace(partitions=case.partitions[:index] + case.partitions[index + 1 :])
        for index in range(len(case.partitions))
        if len(case.partitions) > 1
    ]
    for name, default in Case._field_defaults.items():
        if name not in ("step", "odd") and getattr(case, name) != default:
            found.append(case._replace(**{name: default}))
    for index, wanted in enumerate(case.partitions):
        for name, default in Wanted._field_defaults.items():
            if getattr(wanted, name) != default:
                changed = wanted._replace(**{name: default})
                found.append(
                    case._replace(
                        partitions=(
                            *case.partitions[:index],
                            changed,
                            *case.partitions[index + 1 :],
                        )
                    )
                )
    return [
        one for one in found if one.min_bytes <= 0 or one.max_wait_ms <= case.max_wait_ms < LONG_MS
    ]


def unusual(case: Case) -> list[str]:
    """Names of the fields that say anything but the usual."""
    if case.has_session:
        return [case.step.value, *sorted(case.odd)]
    parts = [
        name
        for wanted in case.partitions
        for name in wanted._field_defaults
        if getattr(wanted, name) != wanted._field_defaults[name]
    ]
    return [
        *(
            name
            for name in Case._field_defaults
            if name != "odd" and getattr(case, name) != Case._field_defaults[name]
        ),
        *sorted(set(parts)),
        f"{len(case.partitions)} partitions",
    ]
