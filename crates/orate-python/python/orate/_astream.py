"""Streams for asyncio."""

import asyncio


async def chunks(stream):
    """Yields the chunks of a stream, which a thread computes."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    ahead = stream._ahead(lambda: loop.call_soon_threadsafe(ready.set))
    try:
        while not ahead.is_over:
            await ready.wait()
            ready.clear()
            while chunk := ahead.take():
                yield chunk
    finally:
        ahead.close()
