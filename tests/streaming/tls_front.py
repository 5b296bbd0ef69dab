"""TLS before the embedded Postgres, which has none: clients ask for it as they do of any server."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SSL_REQUEST = struct.pack(">ii", 8, 80877103)


@contextmanager
def tls_front(port: int, certificate: Path) -> Iterator[int]:
    """The port of a front that shows this certificate (PEM, with its key), and hands everything on to `port`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with suppress(OSError), client:
            while client.recv(8, socket.MSG_WAITALL) != SSL_REQUEST:
                client.sendall(b"N")
            client.sendall(b"S")
            with (
                context.wrap_socket(client, server_side=True) as secured,
                socket.create_connection(("127.0.0.1", port)) as server,
            ):
                back = threading.Thread(target=copy, args=(server, secured), daemon=True)
                back.start()
                copy(secured, server)
                back.join()

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


def copy(source: socket.socket, target: socket.socket) -> None:
    """Until one of them ends."""
    with suppress(OSError):
        while data := source.recv(64 << 10):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)
