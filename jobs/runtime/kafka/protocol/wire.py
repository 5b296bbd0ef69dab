"""One connection to one broker, for what no client library offers: record batches as they lie in the log.

Request and response formats: https://kafka.apache.org/protocol, in the versions that Kafka has had since 2.3.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import ssl
import struct
from dataclasses import dataclass
from types import TracebackType

from confluent_kafka import KafkaError, KafkaException

from jobs.runtime.kafka.access import KafkaAccess, SaslMechanism

TIMEOUT_SECONDS = 15.0
CLIENT = "weir"
FETCH, FETCH_VERSION = 1, 11
SASL_HANDSHAKE, SASL_HANDSHAKE_VERSION = 17, 1
SASL_AUTHENTICATE, SASL_AUTHENTICATE_VERSION = 36, 0
READ_COMMITTED = 1
ANY_REPLICA, NO_SESSION, ANY_EPOCH, ANY_START = -1, -1, -1, -1
MAX_ANSWER_BYTES = 1 << 30


@dataclass(frozen=True)
class Fetched:
    """Batches of one partition as bytes; the last may be cut off. `aborted`: (producer, first offset) given up."""

    batches: bytes
    aborted: list[tuple[int, int]]


class Broker:
    """A connection, authenticated by `KafkaAccess`. Raises KafkaException, as the client libraries do."""

    def __init__(self, access: KafkaAccess, host: str, port: int) -> None:
        self._correlation = 0
        try:
            self._socket = socket.create_connection((host, port), TIMEOUT_SECONDS)
            if access.security_protocol.is_encrypted:
                trusted = ssl.create_default_context(cafile=None if access.ca_file is None else str(access.ca_file))
                if access.client_file is not None:
                    trusted.load_cert_chain(access.client_file)
                self._socket = trusted.wrap_socket(self._socket, server_hostname=host)
        except OSError as error:
            raise _transport(error) from error
        if access.security_protocol.signs_in:
            self._sign_in(access)

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int) -> Fetched:
        """What is committed from `offset` on: about `max_bytes`, at least one batch; none at the end of the log."""
        body = struct.pack(">iiiibii", ANY_REPLICA, 0, 0, max_bytes, READ_COMMITTED, 0, NO_SESSION)
        body += struct.pack(">i", 1) + _text(topic) + struct.pack(">i", 1)
        body += struct.pack(">iiqqi", partition, ANY_EPOCH, offset, ANY_START, max_bytes)
        body += struct.pack(">i", 0) + _text("")
        answer = _Answer(self._ask(FETCH, FETCH_VERSION, body))
        answer.numbers("i")  # throttled for so long
        _check(answer.numbers("h")[0])
        answer.numbers("ii")  # session, and one topic
        answer.text()
        _, _, error = answer.numbers("iih")  # one partition, this one
        _check(error)
        answer.numbers("qqq")  # ends and beginning of the log
        aborted = [(producer, first) for producer, first in (answer.numbers("qq") for _ in range(answer.count()))]
        answer.numbers("i")  # a nearer replica
        return Fetched(answer.data(), aborted)

    def _ask(self, api: int, version: int, body: bytes) -> memoryview:
        self._correlation += 1
        request = struct.pack(">hhi", api, version, self._correlation) + _text(CLIENT) + body
        try:
            self._socket.sendall(struct.pack(">i", len(request)) + request)
            (length,) = struct.unpack(">i", self._receive(4))
            if not 4 <= length <= MAX_ANSWER_BYTES:
                raise OSError(f"an answer of {length} bytes")
            answer = self._receive(length)
        except OSError as error:
            raise _transport(error) from error
        return memoryview(answer)[4:]

    def _receive(self, length: int) -> bytes:
        data = bytearray(length)
        view, received = memoryview(data), 0
        while received < length:
            count = self._socket.recv_into(view[received:])
            if count == 0:
                raise OSError("the broker hung up")
            received += count
        return bytes(data)

    def _sign_in(self, access: KafkaAccess) -> None:
        answer = _Answer(self._ask(SASL_HANDSHAKE, SASL_HANDSHAKE_VERSION, _text(access.sasl_mechanism.value)))
        _check(answer.numbers("h")[0])
        password = access.password.get_secret_value()
        if access.sasl_mechanism is SaslMechanism.PLAIN:
            self._authenticate(f"\0{access.username}\0{password}".encode())
            return
        proof = Scram(access.sasl_mechanism, access.username, password)
        first = self._authenticate(proof.first())
        proof.verify(self._authenticate(proof.final(first)))

    def _authenticate(self, data: bytes) -> bytes:
        request = struct.pack(">i", len(data)) + data
        answer = _Answer(self._ask(SASL_AUTHENTICATE, SASL_AUTHENTICATE_VERSION, request))
        (error,) = answer.numbers("h")
        answer.text()
        _check(error)
        return answer.data()


class Scram:
    """The client's side of RFC 5802."""

    def __init__(self, mechanism: SaslMechanism, username: str, password: str) -> None:
        self._hash = "sha256" if mechanism is SaslMechanism.SCRAM_SHA_256 else "sha512"
        self._password = password.encode()
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={secrets.token_urlsafe(24)}"
        self._signature = b""

    def first(self) -> bytes:
        """Who signs in."""
        return f"n,,{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """The proof that the password is known."""
        fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, base64.b64decode(fields["s"]), int(fields["i"]))
        unproved = f"c=biws,r={fields['r']}"
        message = f"{self._bare},{challenge.decode()},{unproved}".encode()
        client = self._hmac(salted, b"Client Key")
        mask = self._hmac(hashlib.new(self._hash, client).digest(), message)
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(client, mask, strict=True))).decode()
        return f"{unproved},p={proof}".encode()

    def verify(self, answer: bytes) -> None:
        """That the broker knows it too. Raises KafkaException."""
        if answer != b"v=" + base64.b64encode(self._signature):
            raise KafkaException(
                KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED, "the broker did not prove its password")
            )

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash).digest()


class _Answer:
    """A response, read from its beginning."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def numbers(self, kinds: str) -> tuple[int, ...]:
        found = struct.unpack_from(f">{kinds}", self._data, self._at)
        self._at += struct.calcsize(f">{kinds}")
        return found

    def count(self) -> int:
        return max(0, self.numbers("i")[0])

    def text(self) -> bytes:
        return self._take(self.numbers("h")[0])

    def data(self) -> bytes:
        return self._take(self.numbers("i")[0])

    def _take(self, length: int) -> bytes:
        taken = bytes(self._data[self._at : self._at + max(0, length)])
        self._at += max(0, length)
        return taken


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _check(code: int) -> None:
    if code != 0:
        raise KafkaException(KafkaError(code))


def _transport(error: OSError) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TRANSPORT, f"{type(error).__name__}: {error}"))
