"""A TCP proxy that can be cut, to simulate a lost network."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Forwards bytes to a port of this machine until it is cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self.answers = threading.Event()
        """While it is not set, bytes of the server are dropped."""
        self.answers.set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        for thread in self._threads:
            thread.join(5)

    def cut(self) -> None:
        """End every connection and refuse new ones."""
        self._open.clear()
        self.drop()

    def mend(self) -> None:
        """Accept new connections again."""
        self._open.set()

    def drop(self) -> None:
        """End all present connections."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self._open.is_set():
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if late := not self._open.is_set():  # the proxy was cut meanwhile
                    near.close()
                    far.close()
                else:
                    self._pairs.append((near, far))
            if late:
                continue
            for way in ((near, far, False), (far, near, True)):
                self._threads.append(threading.Thread(target=self._pass, args=way, daemon=True))
                self._threads[-1].start()

    def _pass(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not is_answer or self.answers.is_set():
                    target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
