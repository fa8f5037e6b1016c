"""One line of the access log's type fetch, for tests to write and to compare.

Owns the names of a response's fields, which the product's line holds as a plain tuple. It must not know who logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrics.access_log import FetchLine, FetchResponseLine

if TYPE_CHECKING:
    from metrics.access_log import FetchValues


class LoggedFetch(FetchLine):
    """One partition of one Fetch, the product's line."""

    response: FetchResponseLine


def name_fields(line: FetchValues) -> LoggedFetch:
    """The product's line, plain or not, with names for all of its fields."""
    return LoggedFetch(FetchResponseLine(*line[0]), *line[1:])
