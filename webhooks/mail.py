"""Mail by SMTP, always over TLS: to the address of the server that was checked, with the certificate of its name."""

from __future__ import annotations

import asyncio
import json
import re
import smtplib
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from time import monotonic
from typing import Any

import httpx

from deployment.errors import CannotRun
from webhooks.addresses import address_of, host_of
from webhooks.outcomes import Attempt
from webhooks.posting import MAX_ERROR_CHARACTERS, TIMEOUT_SECONDS
from webhooks.wording import sentence, shown

URL_VARIABLE, SENDER_VARIABLE = "WEIR_SMTP_URL", "WEIR_SMTP_SENDER"
PASSWORD_VARIABLE, PRIVATE_VARIABLE = "WEIR_SMTP_PASSWORD", "WEIR_SMTP_ALLOW_PRIVATE"
PORTS = {"smtps": 465, "smtp": 587}
ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@(?=.{1,189}\Z)[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")
IS_OF_CLIENT = re.compile(r"530 |5\d\d 5\.7\.")
"""A refusal of who sends (RFC 4954; X.7.Z of RFC 3463), such as that it may not relay: no other mailbox would do."""
DELIVERED = 250
TAKEN_SECONDS = 120.0
"""For the answer to a mail's content: servers look for viruses and spam before they take it, and one that is not waited
for gets the mail again. RFC 5321 asks for ten minutes; so long a hanging server would hold up other endpoints."""
QUIT_SECONDS = 5.0


@dataclass(frozen=True)
class MailServer:
    """Whom mail is handed to. `begins_with_tls`: else by STARTTLS, and never without. `password` needs `user`."""

    host: str
    port: int
    begins_with_tls: bool
    sender: str
    user: str = ""
    password: str = field(default="", repr=False)
    allows_private: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> MailServer | None:
        """As the variables name it; None where URL_VARIABLE is not set. Raises CannotRun, never with the password."""
        if not environment.get(URL_VARIABLE):
            return None
        sender, allows = environment.get(SENDER_VARIABLE, ""), environment.get(PRIVATE_VARIABLE) or "false"
        password = environment.get(PASSWORD_VARIABLE, "")
        try:
            url = httpx.URL(environment[URL_VARIABLE])
        except httpx.InvalidURL:
            url = httpx.URL("")
        if url.scheme not in PORTS or not url.host or url.password or url.path not in ("", "/"):
            raise CannotRun(
                f"{URL_VARIABLE} must be smtps://USER@HOST:PORT, or smtp:// for STARTTLS; the password is"
                f" {PASSWORD_VARIABLE}."
            )
        if not is_mail_address(sender):
            raise CannotRun(f"{SENDER_VARIABLE} is {sender!r}, but must be the address that sends mail.")
        if bool(url.username) != bool(password):
            raise CannotRun(f"{URL_VARIABLE} must name a user if {PASSWORD_VARIABLE} is set, and only then.")
        if not (url.username + password).isascii():
            raise CannotRun(f"The user of {URL_VARIABLE} and {PASSWORD_VARIABLE} must be ASCII.")
        if allows not in ("true", "false"):
            raise CannotRun(f"{PRIVATE_VARIABLE} is {allows!r}, but must be true or false.")
        port = url.port or PORTS[url.scheme]
        return cls(host_of(url), port, url.scheme == "smtps", sender, url.username, password, allows == "true")


def is_mail_address(text: str) -> bool:
    """Whether it is one address in ASCII, without a name or options."""
    return ADDRESS.fullmatch(text) is not None


def mail_of(event_id: str, body: bytes, sender: str, to: str, at: datetime) -> EmailMessage:
    """A mail about an event, with the same `Message-ID` in every attempt."""
    event: dict[str, Any] = json.loads(body)
    text = sentence(event["type"], event["data"])
    message = EmailMessage(policy=SMTP)
    # No encoded word begins in it: `email` would decode one that is a customer's text, and with it a line break.
    subject = f"Weir: {shown(text)}".replace("=?", "= ?")
    message["From"], message["To"], message["Subject"] = sender, to, subject
    message["Date"] = format_datetime(at)
    message["Message-ID"] = f"<{event_id}@{sender.partition('@')[2]}>"
    # No out-of-office reply: RFC 3834.
    message["Auto-Submitted"] = "auto-generated"
    values = (f"{name}: {shown(value)}" for name, value in event["data"].items() if not isinstance(value, dict | list))
    message.set_content(
        "\n".join([text, "", *values, "", f"{event['type']} {event['timestamp']} {event_id}"]) + "\n",
        cte="quoted-printable",
    )
    return message


class Mailer:
    """Hands mail to the server; without one each attempt fails with a sentence that says so."""

    def __init__(
        self,
        server: MailServer | None,
        trust: ssl.SSLContext | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """`timeout_seconds`: until the content is sent."""
        self._server = server
        self._trust = trust or ssl.create_default_context()
        self._timeout_seconds = timeout_seconds

    async def send(self, event_id: str, body: bytes, to: str, at: datetime) -> Attempt:
        """One attempt, which begins at `at`. A thread that a timeout leaves sends no mail after it."""
        if self._server is None:
            return Attempt(error=f"the sender has no {URL_VARIABLE}, so it sends no mail")
        try:
            async with asyncio.timeout(2 * self._timeout_seconds + TAKEN_SECONDS):
                named = httpx.URL(scheme="https", host=self._server.host, port=self._server.port)
                address = await address_of(named, allows_private=self._server.allows_private)
                message = mail_of(event_id, body, self._server.sender, to, at)
                return await asyncio.to_thread(self._hand_over, self._server, address, message, to)
        except smtplib.SMTPResponseException as answered:
            # About the server, the sender or the password: a person can correct these, so it is tried again.
            return replace(_refused(answered.smtp_code, answered.smtp_error), refuses=False)
        except TimeoutError:
            return Attempt(error="no answer in time")
        except Exception as problem:  # noqa: BLE001 -- no endpoint may stop the others
            return Attempt(error=(str(problem) or type(problem).__name__)[:MAX_ERROR_CHARACTERS])

    def _hand_over(self, server: MailServer, address: str, message: EmailMessage, to: str) -> Attempt:
        session = _Session(server, address, self._trust, self._timeout_seconds)
        try:
            if not server.begins_with_tls:
                session.starttls(context=self._trust)
            if server.user:
                session.login(server.user, server.password)
            session.send_message(message, server.sender, [to])
            # The mail was taken: how the session ends changes nothing.
            with suppress(smtplib.SMTPException, OSError):
                session.leave()
        except smtplib.SMTPRecipientsRefused as refused:
            attempt = _refused(*refused.recipients[to])
            # Postfix names what it has against the client, the sender or the login only here.
            return replace(attempt, refuses=attempt.refuses and not IS_OF_CLIENT.match(attempt.error or ""))
        except smtplib.SMTPDataError as refused:
            return _refused(refused.smtp_code, refused.smtp_error)
        finally:
            session.close()
        return Attempt(DELIVERED)


class _Session(smtplib.SMTP):
    """One that is connected to an address, not to what its name stands for by now."""

    sock: socket.socket

    def __init__(self, server: MailServer, address: str, trust: ssl.SSLContext, timeout_seconds: float) -> None:
        self._server, self._address, self._trust = server, address, trust
        self._sends_before = monotonic() + timeout_seconds
        super().__init__(server.host, server.port, timeout=timeout_seconds)

    def data(self, msg: Any) -> tuple[int, bytes]:
        """Hand the content over, unless the attempt has failed by now, and wait for what becomes of it."""
        if monotonic() > self._sends_before:
            raise TimeoutError
        self.sock.settimeout(TAKEN_SECONDS)
        return super().data(msg)

    def leave(self) -> None:
        """End it; nothing depends on the answer."""
        self.sock.settimeout(QUIT_SECONDS)
        self.quit()

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        connected = socket.create_connection((self._address, port), timeout)
        return self._trust.wrap_socket(connected, server_hostname=host) if self._server.begins_with_tls else connected


def _refused(code: int, answer: bytes | str) -> Attempt:
    """By RFC 5321 a 4yz may be tried again, as greylisting asks for, and a 5yz of recipient or content may not."""
    text = answer if isinstance(answer, str) else answer.decode(errors="replace")
    return Attempt(error=shown(f"{code} {text}"), refuses=code >= 500)
