"""Bytes in, whole frames out.

Owns: one connection's receive buffers in one direction. What fits the scratch buffer is cut from it as bytes;
a larger frame is received straight into a bytearray of its own, which nobody else touches afterwards. Must
not know: sockets, what a frame says. Invariants: parsed <= received <= len(scratch); between frames no scratch
buffer is held, so that an idle connection costs none: whoever receives next takes it; a frame's length is
checked against the limit before memory is set aside; a large frame's buffer starts at `eager_bytes` and
doubles as bytes arrive, so that a peer who announces much and sends little does not hold much. Kafka's rule
for the limit: NetworkReceive.readFrom, the length without its prefix.
"""

from protocol.errors import BadFrame
from protocol.wire import INT32

PREFIX_BYTES = 4
SCRATCH_BYTES = 64 * 1024
EAGER_BYTES = 1024 * 1024
SPARE_LIMIT = 32
_spare: list[memoryview] = []
"""Scratch buffers of the usual size that nobody holds: a few serve all connections in turn."""


class Framer:
    """Cuts a stream into frames: alternate `get_buffer` and `received`, as asyncio.BufferedProtocol does.

    `max_frame_bytes` bounds the length that a frame may announce; `eager_bytes` is what a large frame may
    take before its bytes are there (give a trusted upstream more). After `BadFrame` the connection is over,
    with what else the same chunk held.
    """

    __slots__ = (
        "_eager_bytes",
        "_large",
        "_large_bytes",
        "_max_frame_bytes",
        "_parsed",
        "_received",
        "_scratch",
        "_scratch_bytes",
    )

    def __init__(
        self, max_frame_bytes: int, *, scratch_bytes: int = SCRATCH_BYTES, eager_bytes: int = EAGER_BYTES
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._eager_bytes = max(eager_bytes, scratch_bytes)
        self._scratch: memoryview | None = None
        self._scratch_bytes = scratch_bytes
        self._parsed = 0
        self._received = 0  # in the large frame while there is one, else in the scratch buffer
        self._large: bytearray | None = None
        self._large_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes held of a frame that is not complete; 0 between frames."""
        return self._received - self._parsed

    @property
    def held_bytes(self) -> int:
        """Memory set aside for this direction of the connection."""
        held = 0 if self._scratch is None else len(self._scratch)
        return held + (0 if self._large is None else len(self._large))

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Where the next bytes go; never empty. `sizehint` is asyncio's and is not needed."""
        large = self._large
        if large is None:
            if self._scratch is None:
                self._scratch = self._take_scratch()
            return self._scratch[self._received :]
        if self._received == len(large):
            grown = bytearray(min(self._large_bytes, 2 * len(large)))
            grown[: self._received] = large
            self._large = large = grown
        return memoryview(large)[self._received :]

    def _take_scratch(self) -> memoryview:
        if _spare and self._scratch_bytes == SCRATCH_BYTES:
            return _spare.pop()
        return memoryview(bytearray(self._scratch_bytes))

    def _give_back(self, scratch: memoryview) -> None:
        self._scratch = None
        if len(scratch) == SCRATCH_BYTES and len(_spare) < SPARE_LIMIT:
            _spare.append(scratch)

    def received(self, size_bytes: int) -> list[bytes | bytearray]:
        """The frames that `size_bytes` more in the buffer completed, in order; raises `BadFrame`."""
        self._received += size_bytes
        large = self._large
        if large is None:
            return self._cut()
        if self._received < self._large_bytes:
            return []
        self._large = None
        self._received = 0
        return [large]

    def _cut(self) -> list[bytes | bytearray]:
        frames: list[bytes | bytearray] = []
        scratch, at, end = self._scratch, self._parsed, self._received
        assert scratch is not None, "received comes after get_buffer"
        while end - at >= PREFIX_BYTES:
            length = INT32.unpack_from(scratch, at)[0]
            if not 0 <= length <= self._max_frame_bytes:
                raise BadFrame(f"a frame of {length} bytes (0 to {self._max_frame_bytes} are allowed)")
            after = at + PREFIX_BYTES + length
            if after > end:
                if after - at > len(scratch):
                    self._start_large(scratch, at, end, after - at)
                    return frames
                break
            frames.append(bytes(scratch[at:after]))
            at = after
        if at == end:
            self._give_back(scratch)
        elif at:
            scratch[: end - at] = scratch[at:end]
        self._parsed, self._received = 0, end - at
        return frames

    def _start_large(self, scratch: memoryview, at: int, end: int, frame_bytes: int) -> None:
        """Give the frame that starts at `at` of the scratch buffer a buffer of its own."""
        self._large = bytearray(min(frame_bytes, self._eager_bytes))
        self._large[: end - at] = scratch[at:end]
        self._large_bytes = frame_bytes
        self._parsed, self._received = 0, end - at
        self._give_back(scratch)
