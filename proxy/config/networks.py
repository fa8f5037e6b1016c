"""Networks: addresses of clients and the lists of networks that they are compared with.

Owns parsing of addresses and of networks in CIDR notation, IPv4 and IPv6. Must not know a key, a socket or a
connection. Invariants: an IPv4 address is the same whether it is written as such or mapped into IPv6
(`::ffff:192.0.2.1`), and so is a network; a text that is no address is in no network.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Annotated

from pydantic import PlainSerializer, PlainValidator

if TYPE_CHECKING:
    from collections.abc import Sequence

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_LONGEST_TEXT = 64
MOST_NETWORKS = 256
"""Networks of one list: each accepted connection is compared with all of them."""


def parse_network(value: object) -> str:
    """The usual text of a network: `10.0.0.0/8`, `2001:db8::/32`, or an address, which is a network of one.
    Raises ValueError for anything else, also where bits are set behind the prefix.
    """
    try:
        if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
            raise ValueError("not a text")
        network = ipaddress.ip_network(value.strip())
    except ValueError as error:
        raise ValueError(
            f"is not a network; write for example 10.0.0.0/8 or 2001:db8::/32 ({error})"
        ) from None
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED):
        first = ipaddress.IPv4Address(int(network.network_address) & 0xFFFFFFFF)
        network = ipaddress.IPv4Network((first, network.prefixlen - _MAPPED.prefixlen))
    return str(network)


def parse_networks(value: object) -> tuple[str, ...]:
    """The networks of a text that separates them by commas, each as `parse_network` gives it. Raises ValueError,
    also for none, and for more than MOST_NETWORKS.
    """
    if isinstance(value, str):
        value = tuple(value.split(","))
    if not isinstance(value, tuple) or len(value) > MOST_NETWORKS:
        raise ValueError(f"is not a text of at most {MOST_NETWORKS} networks, separated by commas")
    return tuple(map(parse_network, value))


NetworkList = Annotated[
    tuple[str, ...], PlainValidator(parse_networks), PlainSerializer(", ".join, when_used="json")
]


def parse_address(text: str) -> IpAddress | None:
    """The address of a peer as sockets name it; None if the text is none."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


class Networks:
    """Some networks. `in` with an address is False where the address is None."""

    __slots__ = ("_networks",)

    def __init__(self, texts: Sequence[str]) -> None:
        """`texts`: as `parse_network` gives them."""
        self._networks = tuple(map(ipaddress.ip_network, texts))

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: object) -> bool:
        if not isinstance(address, (ipaddress.IPv4Address, ipaddress.IPv6Address)):
            return False
        return any(address.version == one.version and address in one for one in self._networks)


class HostLists:
    """The lists `allow` and `deny` of a listener: a denied address is refused, and where there is an `allow`,
    so is one that is not in it. An address that cannot be read is refused where there is any list.
    """

    __slots__ = ("_allow", "_deny")

    def __init__(self, allow: Sequence[str], deny: Sequence[str]) -> None:
        self._allow, self._deny = Networks(allow), Networks(deny)

    def __bool__(self) -> bool:
        return bool(self._allow) or bool(self._deny)

    def admits(self, address: IpAddress | None) -> bool:
        """Return True if the lists let the address in."""
        if not self:
            return True
        if address is None or address in self._deny:
            return False
        return not self._allow or address in self._allow
