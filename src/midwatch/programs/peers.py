"""Peers: find out whether the process at the other end of a Unix socket belongs to an agent."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

from midwatch.programs.cgroup import is_in_cgroup_of_child
from midwatch.programs.reaper import ATTEMPTS_BY_GROUP, read_environment, read_stat

PEER_PIDFD = 77  # SO_PEERPIDFD of Linux 6.5
OF_AN_AGENT = (
    "this process belongs to the task of an agent, so it does not get the owner's token; use the token in "
    "MIDWATCH_TOKEN, or run the command in a terminal of your own."
)
UNKNOWN = "the server could not find out which process asks for the owner's token; try again."
OTHER_USER = "only the user who runs the server gets the owner's token; use a token of your own in MIDWATCH_TOKEN."


def find_reason_to_refuse(connection: socket.socket, server: int) -> str | None:
    """Return why the process that has connected does not get the rights of the owner, or None if it gets them.

    `server` is the process id of the server. All processes that the server has started belong to agents.
    """
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid != os.getuid():
        return OTHER_USER
    try:
        if any(_is_of_agent(process) for process in _list_ancestors(pid, server)):
            return OF_AN_AGENT
    except (OSError, IndexError, ValueError):
        return UNKNOWN
    return UNKNOWN if _has_ended(connection) else None


def _list_ancestors(pid: int, server: int) -> Iterator[int]:
    """Yield the process, its parent, the parent of its parent and so on. The first process of the system is left out.

    Yield 0 after a process that the server has started.
    """
    process = pid
    while process > 1:
        yield process
        process = int(read_stat(process)[1])
        if process == server:
            yield 0
            return


def _is_of_agent(pid: int) -> bool:
    """Return whether a process, or its cgroup, group or session, was started for an attempt."""
    if pid == 0 or is_in_cgroup_of_child(pid):
        return True
    groups = {int(number) for number in read_stat(pid)[2:4]}
    if not groups.isdisjoint(ATTEMPTS_BY_GROUP):
        return True
    with suppress(PermissionError):  # a process of another user, such as `login`
        return any(variable.startswith(b"MIDWATCH_TASK=") for variable in read_environment(pid).split(b"\0"))
    return False


def _has_ended(connection: socket.socket) -> bool:
    """Return whether the process has ended, so that another process may have got its number meanwhile."""
    try:
        descriptor = connection.getsockopt(socket.SOL_SOCKET, PEER_PIDFD)
    except OSError:
        return False  # the system cannot tell
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))
    finally:
        os.close(descriptor)
