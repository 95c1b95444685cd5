"""Sessions whose conversation is open in a process."""

from __future__ import annotations

from midwatch.domain.changes import Fence
from midwatch.stores.verbs.changes import hold as hold_fence
from midwatch.stores.verbs.tx import Tx


def hold(tx: Tx, key: str, owner: str, fence: Fence | None) -> int:
    if fence is not None:
        hold_fence(tx, fence)
    row = tx.row("session.hold", {"key": key, "owner": owner})
    tx.topics.add("session")
    assert row is not None, "a conversation's session is made when its first task is submitted"
    return int(row[0])


def release(tx: Tx, key: str, owner: str) -> None:
    if tx.run("session.release", {"key": key, "owner": owner}):
        tx.topics |= {"session", "task"}  # another process may take what waits in it


def restart(tx: Tx, key: str) -> bool:
    live = tx.run("session.restart", {"key": key}) == 1
    if live:
        tx.topics.add("session")
    return live


def sessions(tx: Tx, owner: str) -> dict[str, int]:
    return dict(tx.rows("session.live", {"owner": owner}))


def work(tx: Tx, owner: str, now: int) -> bool:
    return tx.row("session.live_work", {"owner": owner, "now": now}) is not None
