"""The objects of other rooms that connections use.

Owns their types alone. It must not know who has them. Invariant: nothing here is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.primitives import Frame
    from proxy.accounting.client_groups import GroupMember
    from proxy.accounting.counters import Counters
    from proxy.config.cache_modes import CacheModes
    from proxy.config.model import Config, Limits, ListenerConfig, ListenerTls
    from proxy.net.byte_budget import ByteBudget
    from proxy.net.delegation_token import DelegationToken
    from proxy.net.framed_transport import FramedTransport
    from proxy.net.host_limits import HostLimits
    from proxy.net.response_order import Place
    from proxy.net.tls_handshakes import Handshakes


class Sending(Protocol):
    """Sends what waits for one of Forebay's own connections: the replica fetcher."""

    def pump(self) -> None:
        """Send whatever is due."""


class NetServices(Protocol):
    """Handed to connections that no client owns."""

    @property
    def config(self) -> Config:
        """What was configured."""

    @property
    def counters(self) -> Counters:
        """What is counted."""

    @property
    def responses(self) -> ByteBudget:
        """The budget of answers."""

    @property
    def version(self) -> str:
        """Forebay's own."""

    @property
    def replica_fetcher(self) -> Sending:
        """Who waits for connections."""

    @property
    def now(self) -> Callable[[], float]:
        """The clock, in seconds."""


class Certificate(Protocol):
    """A TLS connection whose other side has presented a certificate (ssl.SSLObject)."""

    def getpeercert(self, binary_form: bool = False, /) -> Any:
        """Return it in DER, or its fields as a dict."""


class Signer(Protocol):
    """Signs connections to the broker in as one principal."""

    async def borrow(self) -> DelegationToken:
        """Return a token of the principal. Raises `signed_session.SignInRefused` if there is none."""

    def reject(self, token: DelegationToken) -> None:
        """Note that the broker does not accept `token`: the next one is another."""

    def begin_session(self, lifetime_s: float, took_s: float) -> None:
        """Note that the connection has signed in for so many seconds, by an exchange of `took_s`."""

    def close(self) -> None:
        """Note that the principal's connection is gone."""


class SignIns(Protocol):
    """Who clients are, and the delegation tokens by which Forebay signs in for them."""

    def find_principal(self, tls: ListenerTls, presented: Certificate) -> str:
        """Return the user's name that a client's certificate gives. Raises ValueError without one."""

    def open(self, principal: str, began: Callable[[float, float], None] | None = None) -> Signer:
        """Return the signer of a connection of `principal`, a user's name. `began` is called at each
        sign-in with the time before it and the session's lifetime, in seconds.
        """


class Handlers(Protocol):
    """Handles the requests of one client connection, and owns the objects kept for it."""

    def open(self) -> None:
        """Make those objects. The construction of the connection is complete."""

    def receive(self, frame: Frame) -> None:
        """Handle one whole request frame."""

    @property
    def is_idle(self) -> bool:
        """Return True if no read is open beside the requests in the response order."""

    def set_limits(self, limits: Limits) -> None:
        """Take other limits for the requests that arrive from now on."""

    def begin_session(self, sent_at: float, lifetime_s: float) -> None:
        """Note that the client's broker connection was signed in by a request of `sent_at`, for so
        many seconds; 0 without a limit.
        """

    def complete_delayed(self, place: Place | None = None) -> None:
        """Answer the delayed request that holds `place` now; None: all delayed requests."""

    def close(self) -> None:
        """Release all that is kept for the connection, which has ended."""


class PipelinedRequests(Protocol):
    """Requests in flight that are not among a broker connection's `expected`; all of them follow
    those.
    """

    framed: FramedTransport
    """The broker connection's framed transport."""

    def __len__(self) -> int:
        """Return the number of requests in flight."""

    def try_forward(self, frame: bytes, has_more: bool) -> bool:
        """Forward a request frame. Return False if the caller has to handle it. `has_more`: its bytes
        may leave with those of another, which follows at once, or with `flush`.
        """

    def complete(self, answer: bytes, has_more: bool) -> bool:
        """Handle a response frame. Return False if it does not answer the oldest request."""

    def flush(self) -> None:
        """Send the bytes that wait for others since `has_more` was True."""

    def begin(self, now: float) -> None:
        """Note that all requests before these are answered. `now` is in seconds."""

    def materialize(self) -> None:
        """Call before any event other than the next in-order response: makes normal requests of
        them.
        """


class GroupNames(Protocol):
    """Finds the consumer group of connections."""

    def name(self, link: GroupMember, client_id: str | None) -> None:
        """Note the client id of a connection, perhaps another than before."""

    def learn(self, link: GroupMember, group: str) -> None:
        """Note that a request of the connection has named its group, which is not empty."""

    def close(self, link: GroupMember) -> None:
        """Note the end of a connection."""


class ConnectionServices(NetServices, Protocol):
    """Handed to listeners and to the connections of clients."""

    @property
    def client_groups(self) -> GroupNames:
        """The consumer groups of clients."""

    @property
    def requests(self) -> ByteBudget:
        """The budget of requests."""

    @property
    def handshakes(self) -> Handshakes:
        """TLS handshakes in progress."""

    @property
    def sign_ins(self) -> SignIns:
        """How Forebay signs in as clients' principals."""

    @property
    def host_limits(self) -> HostLimits:
        """The limits by address."""

    @property
    def modes(self) -> CacheModes:
        """What memory does for each connection."""

    def stores_on(self, listener: ListenerConfig) -> bool:
        """Whether what passes on this listener is stored, and served or observed."""


Services = TypeVar("Services", bound=ConnectionServices, covariant=True)
Kept = TypeVar("Kept", bound=Handlers, covariant=True)
