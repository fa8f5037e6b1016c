"""Where a request goes, by its API key. What is absent from the table is relayed.

Owns the one join between Kafka's API keys and handlers. It must not know what a handler does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocol import api
from proxy.fetch.handler import handle_fetch
from proxy.produce.handler import handle_produce
from proxy.relay import relay_api_versions, relay_sasl, relay_sasl_handshake, relay_share

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.header import RequestHeader
    from protocol.wire import Frame
    from proxy.net.client_connection import ClientLink

    Handler = Callable[[ClientLink, RequestHeader, Frame], None]

SHARE_FETCH: Final = 78
SHARE_ACKNOWLEDGE: Final = 79

ROUTES: Final[dict[int, Handler]] = {
    api.PRODUCE: handle_produce,
    api.FETCH: handle_fetch,
    api.API_VERSIONS: relay_api_versions,
    api.SASL_HANDSHAKE: relay_sasl_handshake,
    api.SASL_AUTHENTICATE: relay_sasl,
    SHARE_FETCH: relay_share,
    SHARE_ACKNOWLEDGE: relay_share,
}
