"""A mail server on this machine that answers as they do: it greylists, refuses, has no TLS, wants a password, dies."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any


@dataclass(frozen=True)
class Mail:
    """One that was taken, from and to whom by its envelope."""

    sender: str
    to: str
    message: EmailMessage
    user: str | None
    """Who sent it over TLS."""


class MailReceiver:
    """`answer` gives the reply to a verb of SMTP (DATA: to the content). None: the usual one; "": the session ends.

    `delay`: seconds before it.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        answer: Callable[[str], str | None] = lambda _: None,
        *,
        begins_with_tls: bool = False,
        offers: str = "STARTTLS",
        passwords: Mapping[str, str] | None = None,
        delay: Callable[[str], float] = lambda _: 0,
    ) -> None:
        self._context, self._answer, self._begins_with_tls = context, answer, begins_with_tls
        self._offers, self._passwords, self._delay = offers, passwords, delay
        self.mails: list[Mail] = []
        self.verbs: list[str] = []
        self.in_the_clear: list[str] = []
        """Lines that came before TLS."""
        self.port = 0
        self._sessions: list[asyncio.Task[Any]] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[MailReceiver]:
        """Listen until the block and each session end."""
        tls = self._context if self._begins_with_tls else None
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await asyncio.gather(*self._sessions)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._sessions.append(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            await self._session(reader, writer)
        writer.close()

    def _take(self, content: bytes, sender: str, to: str, user: str | None) -> None:
        message = message_from_bytes(content, policy=policy.default)
        assert isinstance(message, EmailMessage)
        self.mails.append(Mail(sender, to, message, user))

    def _user_of(self, line: str) -> str | None:
        _, name, password = base64.b64decode(line.split(" ")[2]).decode().split("\0")
        return name if (self._passwords or {}).get(name) == password else None

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_encrypted, user, sender, to = self._begins_with_tls, None, "", ""
        writer.write((self._answer("CONNECT") or "220 mail.example ESMTP").encode() + b"\r\n")
        while True:
            line = (await reader.readuntil(b"\r\n")).decode().strip()
            verb = line.partition(" ")[0].upper()
            self.verbs.append(verb)
            if not is_encrypted:
                self.in_the_clear.append(line)
            reply = self._answer(verb)
            if reply == "":
                return
            content, begins = b"", False
            if verb == "DATA":
                writer.write(b"354 go on\r\n")
                content = (await reader.readuntil(b"\r\n.\r\n"))[:-3].replace(b"\r\n..", b"\r\n.")
            elif verb == "EHLO":
                reply = f"250-mail.example\r\n250-AUTH PLAIN\r\n250 {self._offers if not is_encrypted else 'SIZE'}"
            elif verb == "AUTH":
                user = self._user_of(line)
                reply = "235 yes" if user else "535 5.7.8 no"
            elif verb == "STARTTLS" and reply is None:
                reply, begins = "220 go on", True
            elif verb in ("MAIL", "RCPT"):
                named = line.partition("<")[2].partition(">")[0]
                sender, to = (named, to) if verb == "MAIL" else (sender, named)
            if content and (reply or "250").startswith("250"):
                self._take(content, sender, to, user if is_encrypted else None)
            await asyncio.sleep(self._delay(verb))
            writer.write((reply or "250 ok").encode() + b"\r\n")
            if begins:
                await writer.drain()
                await writer.start_tls(self._context)
                is_encrypted = True
            if verb == "QUIT":
                return
