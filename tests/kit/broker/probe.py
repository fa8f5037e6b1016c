"""Is a broker up? Asked in Kafka's own protocol, over plain text.

Owns two hand-made exchanges, ApiVersions v0 and Metadata v1, so that readiness is judged by neither Forebay
nor a client library (which would log and retry at leisure). Must not know how a broker is started.
"""

import socket
import struct

TIMEOUT_S = 2.0
API_VERSIONS, METADATA = 18, 3


def exchange(address: tuple[str, int], api_key: int, version: int, body: bytes) -> bytes:
    """One request; returns the response after its correlation id. Raises OSError."""
    client_id = b"probe"
    header = struct.pack(">hhih", api_key, version, 1, len(client_id)) + client_id
    with socket.create_connection(address, TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        with connection.makefile("rb") as file:
            size = file.read(4)
            reply = file.read(struct.unpack(">i", size)[0]) if len(size) == 4 else b""
    if len(reply) < 4:
        raise ConnectionError("closed before the answer")
    return reply[4:]


def peek_broker_count(address: tuple[str, int]) -> int:
    """How many brokers of the cluster are registered and unfenced, as this one sees it. Raises OSError."""
    if struct.unpack_from(">h", exchange(address, API_VERSIONS, 0, b""))[0] != 0:
        return 0
    count: int = struct.unpack_from(">i", exchange(address, METADATA, 1, struct.pack(">i", 0)))[0]
    return count
