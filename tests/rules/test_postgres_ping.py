"""A server that starts or stops is waited for in any language: a socket answers as a Postgres of another one does."""

from __future__ import annotations

import socketserver
import struct
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection

import psycopg
import pytest

from jobs.runtime.postgres.unavailable import database_is_unavailable

ENCRYPTION_REQUESTS = (80877103, 80877104)
ANSWERS = {
    "starts": ("57P03", "le système de bases de données démarre"),
    "stops": ("57P03", "el sistema de base de datos está apagándose"),
    "password": ("28P01", "authentification par mot de passe échouée"),
    "nowhere": ("3D000", "Datenbank »weir« existiert nicht"),
}
"""Code and words for whoever wants a session in the database of this name."""


class Refusing(socketserver.StreamRequestHandler):
    """Lets nobody in."""

    def handle(self) -> None:
        """No encryption, and no session."""
        size, asked = struct.unpack("!ii", self.rfile.read(8))
        while asked in ENCRYPTION_REQUESTS:
            self.wfile.write(b"N")
            size, asked = struct.unpack("!ii", self.rfile.read(8))
        names = self.rfile.read(size - 8).split(b"\0")
        code, words = ANSWERS[names[names.index(b"database") + 1].decode()]
        fields = f"SFATAL\0VFATAL\0C{code}\0M{words}\0\0".encode()
        self.wfile.write(b"E" + struct.pack("!i", len(fields) + 4) + fields)


def serve(told: Connection) -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), Refusing) as server:
        told.send(server.server_address[1])
        server.serve_forever()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of a process of its own, because libpq's ping holds this one's lock."""
    ours, theirs = get_context("spawn").Pipe()
    server = get_context("spawn").Process(target=serve, args=[theirs], daemon=True)
    server.start()
    yield ours.recv()
    server.kill()
    server.join()


@pytest.mark.parametrize("name", ANSWERS)
def test_a_starting_or_stopping_server_is_recognized_in_every_language(name: str, port: int) -> None:
    code, words = ANSWERS[name]
    with pytest.raises(psycopg.OperationalError, match=words) as found:
        psycopg.connect(f"postgresql://weir:secret@127.0.0.1:{port}/{name}")
    assert found.value.sqlstate is None, "libpq gives a code by now: then that decides, and no ping"
    assert database_is_unavailable(found.value) is (code == "57P03")
