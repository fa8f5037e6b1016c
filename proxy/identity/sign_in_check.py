"""Sign-in check: at the start, whether Forebay can sign in as a client's principal.

Owns the attempts until the first success, and the reason that operators are told meanwhile. Must
not know clients. Invariants:
* each listener of the broker on which tokens are used is tried with a token of
  `delegationTokens.checkPrincipal`, so that all that the broker must have is in use.
* after the success nothing is tried again: later failures are counted where they happen.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol import control
from protocol.errors import BadFrame
from proxy.net.broker_connection import BrokerConnection
from proxy.net.own_connections import API_VERSIONS_VERSION, CLIENT_ID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.net.broker_connection import Dial
    from proxy.net.services import ConnectionServices

log = logging.getLogger("forebay.sign_in")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
UNCHECKED = "it was not tried yet"


@dataclass(frozen=True, slots=True)
class SignInPlace:
    """A listener of the broker where Forebay signs in for clients of `listener`."""

    listener: str
    dial: Dial


class SignInCheck:
    """Tries `places`, one after the other, until all have worked. `problem`: why not yet; "" then."""

    def __init__(self, services: ConnectionServices, places: Sequence[SignInPlace]) -> None:
        self._services = services
        self._places = places
        self._task: asyncio.Task[None] | None = None
        self.problem = UNCHECKED if places else ""

    def start(self) -> None:
        """Begin to try."""
        if self._places:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="sign-in-check")

    def stop(self) -> None:
        """Try no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        for place in self._places:
            while (problem := await self._try(place)) != "":
                if problem != self.problem:
                    log.warning(
                        "listener %s: Forebay cannot sign in for clients: %s",
                        place.listener,
                        problem,
                    )
                self.problem = problem
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self.problem = ""
        log.info("Forebay can sign in to the broker for its clients, by delegation tokens")

    async def _try(self, place: SignInPlace) -> str:
        """Sign in once. Returns why it did not work, or ""."""
        services = self._services
        signer = services.sign_ins.open(services.config.delegation_tokens.check_principal)
        link = BrokerConnection(
            place.dial, services.responses, services.counters, lambda _reason: None, signer=signer
        )
        hello = control.build_api_versions_request(
            API_VERSIONS_VERSION,
            0,
            CLIENT_ID,
            software_name="forebay",
            software_version=services.version,
        )
        try:
            control.scan_api_versions_response(await link.call(hello, 0), API_VERSIONS_VERSION)
        except (ConnectionError, BadFrame) as error:
            return f"{error}"
        finally:
            link.close()
        return ""
