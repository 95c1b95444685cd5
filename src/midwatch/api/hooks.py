"""Routes of hooks: list the hooks of this process, and test one."""

from __future__ import annotations

from midwatch.api.bodies import HookTestBody
from midwatch.api.dependencies import Caller, DeskDep
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json
from midwatch.wire.hooks import HookPage, HookTest

router = make_router("hooks")


@router.get("/hooks", responses={200: {"model": HookPage}})
@needs("oversee")
async def list_hooks(desk: DeskDep, actor: Caller) -> Json:
    """List the hooks in the order in which they are called. State and counters are those of the server's process."""
    return Json({"hooks": [report.snapshot() for report in desk.hooks.list(actor=actor)]})


@router.post("/hooks/{name}/test", responses={200: {"model": HookTest}})
@needs("operate")
async def test(desk: DeskDep, actor: Caller, name: str, body: HookTestBody) -> Json:
    """Call a hook with an example and return its decision. Nothing else happens."""
    tested = await desk.hooks.test(
        name, body.seam, tool=body.tool, arguments=body.arguments, text=body.text, actor=actor
    )  # fmt: skip
    return Json(tested)
