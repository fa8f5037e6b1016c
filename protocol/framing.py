"""Bytes in, whole frames out.

Owns: one connection's incomplete frame in one direction. A chunk that is one frame is that frame: nothing is
copied. A frame larger than SMALL_BYTES gets memory of its own, into which its rest is received and which nobody
else touches afterwards; it is not cleared first. Where `lend` has better memory for it, it is that. Must not know:
sockets, what a frame says. Invariants: between frames nothing is held; while a large frame is incomplete, what comes
goes through `get_buffer`, otherwise through `received`; a frame's length is checked against the limit before memory is
set aside; a large frame's memory starts at `eager_bytes` and doubles as bytes arrive, so that a peer who announces
much and sends little does not hold much, and more than that is not lent. Kafka's rule for the limit:
NetworkReceive.readFrom, the length without its prefix.
"""

from collections.abc import Callable

from protocol._ordinary import ffi
from protocol.errors import BadFrame
from protocol.primitives import INT32

PREFIX_BYTES = 4
SMALL_BYTES = 64 * 1024
EAGER_BYTES = 1024 * 1024

read_length = INT32.unpack_from
_allocate = ffi.new_allocator(should_clear_after_alloc=False)

Lend = Callable[[bytes, int], memoryview | None]
"""From a frame's beginning and its size: memory for all of it, or None."""


def build_buffer(size_bytes: int) -> memoryview:
    """Memory with whatever was there before."""
    return memoryview(ffi.buffer(_allocate("char[]", size_bytes)))


class Framer:
    """Cuts a stream into frames, given in chunks to `received`, or while `in_large` through `get_buffer`.

    `max_frame_bytes` bounds the length that a frame may announce; `eager_bytes` is what a large frame may
    take before its bytes are there (give a trusted upstream more). After `BadFrame` the connection is over,
    with what else the same chunk held.
    """

    __slots__ = (
        "_eager_bytes",
        "_large",
        "_small_bytes",
        "begun",
        "large_bytes",
        "lend",
        "max_frame_bytes",
        "rest",
        "start",
    )

    def __init__(
        self,
        max_frame_bytes: int,
        *,
        small_bytes: int = SMALL_BYTES,
        eager_bytes: int = EAGER_BYTES,
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._small_bytes = small_bytes
        self._eager_bytes = max(eager_bytes, small_bytes)
        self.start = b""
        """Of a small frame that is not complete."""
        self._large: memoryview | None = None
        self.large_bytes = 0
        self.begun = b""
        """What there is of a large frame whose memory is not set aside yet; it will have `large_bytes`."""
        self.rest: memoryview | None = None
        """What is set aside of the large frame's memory and not filled yet; None where there is none."""
        self.lend: Lend | None = None
        """Asked for the memory of a large frame that may have all of it at once (`eager_bytes`)."""

    def limit_frames(self, max_frame_bytes: int) -> None:
        """Allow a frame to announce at most so many bytes from now on."""
        self.max_frame_bytes = max_frame_bytes

    def borrow_from(self, lend: Lend | None) -> None:
        """Ask `lend` for the memory of large frames from now on; None: nothing lends."""
        self.lend = lend

    @property
    def pending_bytes(self) -> int:
        """Bytes held of a frame that is not complete; 0 between frames."""
        if self._large is None or self.rest is None:
            return len(self.start) + len(self.begun)
        return len(self._large) - len(self.rest)

    @property
    def held_bytes(self) -> int:
        """Memory set aside for this direction of the connection."""
        return len(self.start) + len(self.begun) if self._large is None else len(self._large)

    @property
    def frame_bytes(self) -> int:
        """The size of the frame that has begun and not ended; 0 where there is none, or it is not known yet."""
        if self.in_large:
            return self.large_bytes
        return (
            PREFIX_BYTES + int(read_length(self.start)[0]) if len(self.start) >= PREFIX_BYTES else 0
        )

    @property
    def in_large(self) -> bool:
        """Whether what comes next belongs to a large frame: it is to be received into `get_buffer`."""
        return self.rest is not None or bool(self.begun)

    def leave_large(self) -> None:
        """What lacks of the large frame that has `begun` goes elsewhere: `received` is given what is behind it."""
        self.begun = b""

    def let_go(self) -> None:
        """The connection is over: nothing is held of what did not come to its end."""
        self.start = self.begun = b""
        self._large = self.rest = None

    def received(self, chunk: bytes) -> list[bytes]:
        """The frames that `chunk` completes, in order; raises `BadFrame`."""
        if self.start:
            chunk, self.start = self.start + chunk, b""
        frames: list[bytes] = []
        at, end = 0, len(chunk)
        while end - at >= PREFIX_BYTES:
            length = read_length(chunk, at)[0]
            if not 0 <= length <= self.max_frame_bytes:
                raise BadFrame(
                    f"a frame of {length} bytes (0 to {self.max_frame_bytes} are allowed)"
                )
            after = at + PREFIX_BYTES + length
            if after > end:
                if after - at > self._small_bytes:
                    self.begun, self.large_bytes = chunk[at:], after - at
                    return frames
                break
            frames.append(chunk[at:after])
            at = after
        self.start = chunk[at:]
        return frames

    def _set_aside(self) -> None:
        """Give the frame that has begun a buffer of its own, or what is lent to it."""
        begun, self.begun = self.begun, b""
        received = len(begun)
        large = None
        if self.lend is not None and self.large_bytes <= self._eager_bytes:
            large = self.lend(begun, self.large_bytes)
        if large is None:
            large = build_buffer(min(self.large_bytes, max(self._eager_bytes, received)))
        large[:received] = begun
        self._large = large
        self.rest = large[received:]

    def get_buffer(self) -> memoryview:
        """Where the next bytes of the large frame go; never empty. Its memory is set aside when they are to come."""
        if self.begun:
            self._set_aside()
        large, rest = self._large, self.rest
        assert large is not None and rest is not None, "only a large frame has a buffer"
        if not rest:
            received = len(large)
            self._large = build_buffer(min(self.large_bytes, 2 * received))
            self._large[:received] = large
            self.rest = rest = self._large[received:]
        return rest

    def received_large(self, size_bytes: int) -> memoryview | None:
        """So many more bytes are in the buffer: the large frame, if they completed it."""
        rest, frame = self.rest, self._large
        assert rest is not None and frame is not None, "only a large frame has a buffer"
        if size_bytes < len(rest) or len(frame) < self.large_bytes:
            self.rest = rest[size_bytes:]
            return None
        self._large = self.rest = None
        return frame
