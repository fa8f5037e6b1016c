"""Waiting without a clock: the event loop runs until a condition holds.

Owns the patience after which a test fails. It must not know what is waited for. Invariants: nothing sleeps.
"""

import asyncio

PATIENCE_S = 60


async def until(holds):
    """Turn the loop until `holds()`; TimeoutError where it never does."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            turned = asyncio.Event()
            loop.call_soon(turned.set)
            await turned.wait()
