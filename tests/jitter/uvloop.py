"""asyncio's own loop in place of the fast one, which cannot be slowed down."""

from asyncio import new_event_loop, run

__all__ = ["new_event_loop", "run"]
