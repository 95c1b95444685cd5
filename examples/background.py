import asyncio

import midwatch


async def main() -> None:
    async with midwatch.Runtime.open() as desk:
        task = await desk.tasks.submit("Say hello", agent="demo")
        print((await desk.tasks.wait(task.id)).result)


asyncio.run(main())
