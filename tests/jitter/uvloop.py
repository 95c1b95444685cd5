"""The event loop of asyncio in place of uvloop, which cannot be slowed down."""

from asyncio import new_event_loop, run

__all__ = ["new_event_loop", "run"]
