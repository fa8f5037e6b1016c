"""Which queue a request belongs to: the control queue, or a data queue by its topics.

Owns: the stable hash of a topic, and the rule for requests with several topics. Must not know: API keys (the
caller's table says what is control), queues' contents beyond a load that is handed in. Invariants: a topic has
the same queue in every process and at every start (CRC-32, not Python's hash); a request belongs to exactly
one queue, so it holds the slot of one only; a topic is given in one form always (its name where that is
known, else its id), since the two forms hash differently.
"""

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Final
from zlib import crc32

CONTROL: Final = -1


@lru_cache(maxsize=4096)
def queue_of_topic(topic: str | bytes, data_queues: int) -> int:
    """The data queue, 0 to `data_queues` - 1, of a topic's name or 16-byte id."""
    return crc32(topic.encode() if isinstance(topic, str) else topic) % data_queues


def queue_name(number: int) -> str:
    """As metrics and reports have it."""
    return "control" if number == CONTROL else f"data-{number}"


def classify(
    is_control: bool,
    topics: Collection[str | bytes],
    data_queues: int,
    load_of: Callable[[int], float] | None = None,
) -> int:
    """The queue of a request: CONTROL, or a data queue's index.

    Requests without topics (a Fetch of an unchanged session) are control: nothing says what they would wait
    for. Several topics: the most loaded of their queues, by `load_of` (`Queues.load_of`), the lowest index
    among equals. A request lasts as long as its slowest topic does, so it must take the slow queue's slot:
    taken from a healthy queue, that slot would be lost to topics that have nothing to do with the slow one.
    """
    if is_control:
        return CONTROL
    if len(topics) == 1:
        return queue_of_topic(next(iter(topics)), data_queues)
    queues = {queue_of_topic(topic, data_queues) for topic in topics}
    if not queues:
        return CONTROL
    if len(queues) == 1 or load_of is None:
        return min(queues)
    return max(sorted(queues), key=load_of)
