"""Sessions whose agent stays open in a process between tasks: hold, release, restart, list."""

from __future__ import annotations

from midwatch.domain.changes import Fence
from midwatch.stores.verbs.changes import check_fence
from midwatch.stores.verbs.tx import Tx


def hold(tx: Tx, key: str, owner: str, fence: Fence | None) -> int:
    if fence is not None:
        check_fence(tx, fence)
    epoch = tx.value(int, "session.hold", key=key, owner=owner)
    tx.topics.add("session")
    assert epoch is not None, "a session is created when its first task is submitted"
    return epoch


def release(tx: Tx, key: str, owner: str) -> None:
    if tx.run("session.release", {"key": key, "owner": owner}):
        tx.topics |= {"session", "task"}  # another process may claim its waiting tasks


def restart(tx: Tx, key: str) -> bool:
    live = tx.run("session.restart", {"key": key}) == 1
    if live:
        tx.topics.add("session")
    return live


def list_sessions(tx: Tx, owner: str) -> dict[str, int]:
    return dict(tx.rows("session.live", {"owner": owner}))


def has_work(tx: Tx, owner: str, now: int) -> bool:
    return tx.row("session.live_work", {"owner": owner, "now": now}) is not None
