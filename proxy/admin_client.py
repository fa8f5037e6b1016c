"""Questions of a command to the admin port of a Forebay, by its own configuration.

Owns the address, TLS, token and bounds of a question. Must not know what is asked. Invariants: GET only; each answer
has a limit in time and bytes; a failure is an answer with status 0, never an exception.
"""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING, NamedTuple

from proxy.broker_client import build_listener_context, find_local
from proxy.config.check import read_secret

if TYPE_CHECKING:
    from proxy.config.admin import Admin

LARGEST_ANSWER_BYTES = 8 << 20


class AdminAnswer(NamedTuple):
    """`status` 0: there was none, and `body` says why."""

    status: int
    body: str


def ask(admin: Admin, path: str, timeout_s: float) -> AdminAnswer:
    """The answer to a GET; blocks for at most `timeout_s` for each step."""
    host, port = find_local(admin.listen)
    if port == 0:
        return AdminAnswer(0, "admin.listen has any free port")
    connection: http.client.HTTPConnection | None = None
    try:
        if admin.tls is None:
            connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        else:
            context = build_listener_context(admin.tls)
            connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
        token = admin.token_file
        headers = {"Authorization": f"Bearer {read_secret(token)}"} if token else {}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return AdminAnswer(
            answer.status, answer.read(LARGEST_ANSWER_BYTES).decode(errors="replace")
        )
    except (OSError, ValueError, http.client.HTTPException) as error:
        return AdminAnswer(0, f"{error}" or type(error).__name__)
    finally:
        if connection is not None:
            connection.close()
