"""``RuneOperator.arun``: a run for programs with an event loop.

A run waits on files, SQLite and a server in turn, and its contributors are ordinary functions that anybody may write. So the
same run goes on in a worker thread, over the same IO-free core, instead of in a second operator that could differ from it.
What a loop needs on top is here: events that arrive in the loop's own thread, and a cancelled task that stops the server.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rune.operator_run import OperatorResponse
    from rune.runtime.events import OnEvent

__all__ = ["run_in_thread"]


async def run_in_thread(
    run: Callable[..., OperatorResponse], *args: Any, on_event: OnEvent | None = None, **values: Any
) -> OperatorResponse:
    """Awaits ``run(*args, **values)``; ``on_event`` is called in the loop's thread, in order.

    When the awaiting task is cancelled the run is told to stop, which closes the connection and thereby ends the server's
    work; its row is written before the cancellation goes on.
    """
    loop = asyncio.get_running_loop()
    given: threading.Event | None = values.pop("cancel", None)
    cancel = given if given is not None else threading.Event()
    relay: OnEvent | None = None
    if on_event is not None:
        listener = on_event

        def relay(event: Any) -> None:
            loop.call_soon_threadsafe(listener, event)

    work = asyncio.ensure_future(asyncio.to_thread(run, *args, on_event=relay, cancel=cancel, **values))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        cancel.set()
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:
                continue  # told already: leaving now would leave a run without its row
        if not work.cancelled():
            work.exception()  # looked at, so that asyncio does not report it as lost
        raise
