"""Follow a running task: print its stored events in order, and its text while the agent writes it."""

import asyncio

from midwatch import EventFilter, Runtime


async def main() -> None:
    async with Runtime.open() as desk:
        task = await desk.tasks.submit("Count the words of this prompt", agent="demo")
        async for event in desk.bus.follow(0, EventFilter(task_id=task.id), live=True):
            if event.kind == "message_delta":
                print(event.payload["text"], end="", flush=True)
            elif event.kind == "tool_exec_end":
                print(f"[{event.seq}] {event.payload['tool']} returned {event.payload['result']}")
            elif event.kind == "task_finished":
                print(f"\n[{event.seq}] {event.payload['status']}")
                break


asyncio.run(main())
