"""A consumer that keeps fetch sessions as the Java client does (FetchSessionHandler), on raw frames.

Owns what it wants, what it has told, and its id and epoch. It must not know who answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol import fetch
from protocol.fetch_build import build_request

if TYPE_CHECKING:
    from tests.kit.raw_fetch import RawClient

MAX_BYTES = 50 << 20
Key = tuple[str | bytes, int]


class SessionClient:
    """`want` is what it fetches, by topic and partition; changed by the test at will."""

    def __init__(self, client: RawClient, version: int) -> None:
        self.client = client
        self.version = version
        self.want: dict[Key, fetch.FetchPartition] = {}
        self.told: dict[Key, fetch.FetchPartition] = {}
        self.id, self.epoch = 0, 0
        self.request_bytes = self.response_bytes = 0

    def poll(self, max_wait_ms: int = 100, min_bytes: int = 1) -> tuple[fetch.FetchResponse, bytes]:
        """One Fetch of what has changed; the answer and its frame. Its error, if any, resets the session."""
        named = [asked for key, asked in self.want.items() if self.told.get(key) != asked]
        forgotten = [key for key in self.told if key not in self.want]
        frame = build_request(
            self.version,
            7,
            self.client.client_id,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=MAX_BYTES,
            isolation_level=0,
            session_id=self.id,
            session_epoch=self.epoch,
            partitions=sorted(named, key=lambda a: str(a.topic)),
            forgotten=sorted(forgotten, key=lambda key: str(key[0])),
        )
        self.request_bytes += len(frame)
        answer = self.client.call(frame)
        self.response_bytes += len(answer)
        response = fetch.scan_response(answer, self.version)
        if response.error_code:
            self.id, self.epoch, self.told = 0, 0, {}
        else:
            self.told = dict(self.want)
            full = self.epoch == 0
            self.id = response.session_id
            self.epoch = 0 if not self.id else 1 if full else self.epoch + 1
            if not self.id:
                self.told = {}
        return response, answer
