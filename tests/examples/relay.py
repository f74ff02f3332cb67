"""A relay between a browser and a server, of which a test can cut all connections."""

import contextlib
import socket
import threading
from collections.abc import Iterator


class Relay:
    """Passes connections on to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._is_cut = False
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        """End all connections, and each new one at once."""
        with self._lock:
            self._is_cut = True
            sockets = list(self._sockets)
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Pass new connections on again."""
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_cut:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets |= {client, server}
            for pair in ((client, server), (server, client)):
                self._threads.append(threading.Thread(target=self._pass, args=pair))
                self._threads[-1].start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._sockets.discard(source)
        source.close()


@contextlib.contextmanager
def relay(port: int) -> Iterator[Relay]:
    """Run a relay to a port of this machine."""
    running = Relay(port)
    try:
        yield running
    finally:
        running.close()
