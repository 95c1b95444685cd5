"""Use Python functions as agents.

The function `count` returns a number of words. The function `tidy` reports its progress and asks before it deletes a
file. Functions passed to `Runtime.open` run on threads, so a slow function does not delay other tasks. Usually a person
answers the question with `midwatch approve ID`; here the program answers instead.
"""

import asyncio

from midwatch import EventFilter, Runtime, TaskProgress, Turn


def count(prompt: str) -> str:
    return f"{len(prompt.split())} words"


async def tidy(prompt: str, turn: Turn) -> str:
    files = prompt.split()
    kept = []
    for done, file in enumerate(files, 1):
        if file.endswith(".bak"):
            answer = await turn.ask(f"Delete {file}?", ("delete", "keep"))
            if answer.granted:
                continue
        kept.append(file)
        await turn.emit(TaskProgress(text=f"looked at {file}", percent=100 * done / len(files)))
    return f"kept {' '.join(kept)}"


async def answer_for_a_person(desk: Runtime, task_id: str) -> None:
    async for event in desk.bus.follow(0, EventFilter(task_id=task_id)):
        print(event.kind, event.payload.get("text") or event.payload.get("question") or "")
        if event.kind == "approval_requested":
            await desk.approvals.answer(event.payload["approval_id"], grant=True, why="it is a copy")
        if event.kind == "task_finished":
            return


async def main() -> None:
    async with Runtime.open(agents={"count": count, "tidy": tidy}) as desk:
        counted = await desk.tasks.submit("how many words are these", agent="count")
        print((await desk.tasks.wait(counted.id)).result)
        task = await desk.tasks.submit("notes.txt notes.bak plan.txt", agent="tidy")
        await answer_for_a_person(desk, task.id)
        print(await desk.tasks.result(task.id))


asyncio.run(main())
