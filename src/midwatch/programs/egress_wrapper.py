"""The program that opens the way to midwatch's proxy inside of a sandbox, and then becomes the agent's program.

Standard library only, because it runs in a sandbox: `python egress_wrapper.py FD PORT COMMAND...`. It listens in the
sandbox's own network, on any port for the proxy and on PORT for midwatch's own server, unless PORT is 0. It sends both
sockets to midwatch through the socket FD. So midwatch can accept connections in a network that is closed otherwise.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

HERE = "127.0.0.1"
BACKLOG = 100


def main() -> None:
    """Send the listening sockets to midwatch, set the variables of the proxy, and run the command."""
    with socket.socket(fileno=int(sys.argv[1])) as midwatch:
        listening = [socket.create_server((HERE, 0), backlog=BACKLOG)]
        if own := int(sys.argv[2]):
            with suppress(OSError):  # a low port needs rights; then midwatch's server is reached through the proxy
                listening.append(socket.create_server((HERE, own), backlog=BACKLOG))
        socket.send_fds(midwatch, [b"."], [sock.fileno() for sock in listening])
        address = f"http://{HERE}:{listening[0].getsockname()[1]}"
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        os.environ[name] = os.environ[name.lower()] = address
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = ""
    try:
        os.execvp(sys.argv[3], sys.argv[3:])  # noqa: S606 - the agent's program
    except OSError as problem:
        sys.exit(f"{sys.argv[3]}: {problem.strerror}")


if __name__ == "__main__":
    main()
