"""One client of one Forebay whose memory holds a partition (`cached_partition.World`); a test answers for the broker.

Owns the broker's side of the client's link: a played transport, what arrived there, the answers. It must not know what
a test expects. Invariant: the broker answers in the order of the requests.
"""

import asyncio
from typing import Any

from protocol import fetch, header
from protocol.fetch_build import FetchAnswer, build_response
from protocol.framing import Framer
from tests.proxy.cached_partition import END, World
from tests.proxy.net.test_framed_transport import PlayedTransport


class PlayedDial:
    """A broker that accepts each connection at once."""

    host, port, max_frame_bytes = "broker", 9092, 16 << 20

    def __init__(self):
        self.transports = []

    async def connect(self, framed):
        transport = PlayedTransport()
        transport.protocol = framed
        self.transports.append(transport)
        framed.connection_made(transport)


class Scene(World):
    """`asked`: requests on the client's connection that the broker has not answered."""

    def __init__(self, **options):
        self.dial = PlayedDial()
        super().__init__(verify_ratio=0.0, **options)
        self.link.upstream._dial = self.dial
        self._framer, self._heard = Framer(1 << 20), 0
        self.asked = []

    async def turn(self):
        """Run the event loop, and collect the requests at the broker."""
        for _ in range(5):
            await asyncio.sleep(0)
        for transport in self.dial.transports[:1]:
            pieces, self._heard = transport.pieces[self._heard :], len(transport.pieces)
            self.asked += map(bytes, self._framer.received(b"".join(pieces)))

    def answer(self, frame):
        """The broker's answer to the oldest request."""
        self.asked.pop(0)
        self.dial.transports[0].protocol.data_received(frame)

    def deliver(self, data):
        """Deliver a part of a response as an event loop does: into the buffer of a buffered protocol."""
        transport = self.dial.transports[0]
        while data:
            protocol = transport.protocol
            if not isinstance(protocol, asyncio.BufferedProtocol):
                protocol.data_received(data)
                return
            buffer: Any = protocol.get_buffer(-1)
            size_bytes = min(len(buffer), len(data))
            buffer[:size_bytes] = data[:size_bytes]
            protocol.buffer_updated(size_bytes)
            data = data[size_bytes:]

    def answer_fetch(self, *partitions, throttle_time_ms=0, error_code=0):
        """The broker answers the oldest request, a Fetch."""
        self.answer(
            self.build_fetch_answer(
                *partitions, throttle_time_ms=throttle_time_ms, error_code=error_code
            )
        )

    def build_fetch_answer(self, *partitions, throttle_time_ms=0, error_code=0):
        """Return the broker's response to the oldest request, a Fetch."""
        head = header.peek_request(self.asked[0])
        said = build_response(
            head.api_version,
            head.correlation_id,
            throttle_time_ms=throttle_time_ms,
            error_code=error_code,
            session_id=0,
            partitions=partitions,
        )
        return b"".join(said)

    def hear(self):
        """Return the client's last response, scanned, and its frame."""
        frame = self.sent[-1]
        return fetch.scan_response(frame, 13), frame


def said_of(topic_id, index=0, records=b"", high_watermark=END, error=0):
    """Return one partition of a broker's response."""
    views = (records,) if records else ()
    return FetchAnswer(
        topic_id, index, error, high_watermark, high_watermark, 0, None, views, len(records)
    )
