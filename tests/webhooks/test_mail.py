"""Endpoints of mail: over TLS to the server that was named, retried or given up by what the server answers."""

from __future__ import annotations

import json
import ssl
from dataclasses import replace
from datetime import UTC, datetime
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployment.errors import CannotRun
from tests.streaming.certificates import authority_and_server
from tests.webhooks.mail_server import MailReceiver
from tests.webhooks.sending import add_endpoint, hold, now_clock, rows, run, send_all, states
from webhooks.event_types import EventType
from webhooks.kinds import Kind
from webhooks.mail import Mailer, MailServer, is_mail_address, mail_of
from webhooks.posting import TIMEOUT_SECONDS

TO, SENDER = "ops@example.com", "weir@example.com"
ENVIRONMENT = {"WEIR_SMTP_URL": "smtps://weir@mail.example.com", "WEIR_SMTP_SENDER": SENDER}


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(the server's, one that trusts it)."""
    authority, server = authority_and_server(tmp_path, "127.0.0.1")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(server)
    return serving, ssl.create_default_context(cafile=str(authority))


def sent(
    database: str,
    receiver: MailReceiver,
    trust: ssl.SSLContext,
    held: int = 1,
    timeout_seconds: float = TIMEOUT_SECONDS,
    **server: Any,
) -> list[tuple[Any, ...]]:
    """The attempts, after all that was held was sent or given up."""

    async def deliver() -> None:
        async with receiver.serving():
            add_endpoint(database, TO, kind=Kind.MAIL)
            hold(database, ["acme"] * held)
            named = MailServer("127.0.0.1", receiver.port, False, SENDER, allows_private=True)
            await send_all(database, now_clock(), mailer=Mailer(replace(named, **server), trust, timeout_seconds))

    run(deliver)
    return rows(database, "SELECT number::int, status::int, error FROM webhook_attempts ORDER BY number, attempted_at")


@pytest.mark.parametrize("begins_with_tls", [False, True])
def test_a_mail_goes_over_tls_with_a_password_once_and_has_the_id_of_its_event(
    database: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext], begins_with_tls: bool
) -> None:
    receiver = MailReceiver(contexts[0], begins_with_tls=begins_with_tls, passwords={"weir": "secret"})
    # QUIT has an answer that is wrong, too, which must not make a second mail.
    of_server: dict[str, Any] = {"begins_with_tls": begins_with_tls, "user": "weir", "password": "secret"}
    assert sent(database, receiver, contexts[1], 2, **of_server) == [(1, 250, None), (2, 250, None)]
    first, second = receiver.mails
    assert (first.sender, first.to, first.user) == (SENDER, TO, "weir")
    assert [line.partition(" ")[0].upper() for line in receiver.in_the_clear] in ([], ["EHLO", "STARTTLS"] * 2)
    ids = [event_id for (event_id,) in rows(database, "SELECT event_id FROM webhook_events ORDER BY number")]
    assert [mail.message["Message-ID"] for mail in (first, second)] == [f"<{event_id}@example.com>" for event_id in ids]
    assert first.message["Subject"].strip().startswith("Weir: Late usage of acme waits for a decision")
    assert first.message["Auto-Submitted"] == "auto-generated"
    assert "straggler: 1/requests" in first.message.get_content()


def test_a_server_without_tls_gets_neither_password_nor_mail(
    database: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    receiver = MailReceiver(contexts[0], offers="SIZE")
    attempts = sent(database, receiver, contexts[1], user="weir", password="secret")
    assert len(attempts) == 10
    assert {error for _, _, error in attempts} == {"STARTTLS extension not supported by server."}
    assert set(receiver.verbs) <= {"EHLO", "QUIT"}
    assert states(database) == {"dead": 1}


def test_a_server_of_another_certificate_gets_neither_password_nor_mail(
    database: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    stranger = MailReceiver(contexts[0])
    attempts = sent(database, stranger, ssl.create_default_context(), user="weir", password="secret")
    assert "CERTIFICATE_VERIFY_FAILED" in attempts[-1][2]
    assert not {"AUTH", "MAIL"} & set(stranger.verbs)


def test_a_mail_that_is_greylisted_or_whose_server_dies_is_tried_again_and_those_behind_it_wait(
    database: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    replies = iter(["450 4.2.0 Greylisted, try again", "421 4.3.2 closing", "", "451 4.7.1 later"])
    receiver = MailReceiver(contexts[0], lambda verb: next(replies, None) if verb == "RCPT" else None)
    attempts = sent(database, receiver, contexts[1], 2)
    assert [(number, status) for number, status, _ in attempts] == [(1, None)] * 4 + [(1, 250), (2, 250)]
    assert [error for _, _, error in attempts][:2] == ["450 4.2.0 Greylisted, try again", "421 4.3.2 closing"]
    assert ["1/requests" in mail.message.get_content() for mail in receiver.mails] == [True, False]


@pytest.mark.parametrize(("verbs", "attempts"), [(["DATA"], 1), (["MAIL", "RCPT"], 2)])
def test_a_slow_server_gets_a_mail_once(
    database: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext], verbs: list[str], attempts: int
) -> None:
    slow = list(verbs)

    def delay(verb: str) -> float:
        if verb not in slow:
            return 0
        slow.remove(verb)
        return 4 if verb == "DATA" else 2

    receiver = MailReceiver(contexts[0], delay=delay)
    statuses = [status for _, status, _ in sent(database, receiver, contexts[1], timeout_seconds=3)]
    assert statuses[-1] == 250
    assert len(statuses) >= attempts
    assert len(receiver.mails) == 1


@pytest.mark.parametrize(("verb", "reply"), [("RCPT", "550 5.1.1 no such mailbox"), ("DATA", "554 5.7.1 no spam")])
def test_a_mail_that_is_refused_for_good_is_dead_at_once_and_the_next_is_sent(
    database: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext], verb: str, reply: str
) -> None:
    replies = iter([reply])
    receiver = MailReceiver(contexts[0], lambda given: next(replies, None) if given == verb else None)
    assert sent(database, receiver, contexts[1], 2) == [(1, None, reply), (2, 250, None)]
    assert states(database) == {"dead": 1, "delivered": 1}


@pytest.mark.parametrize("reply", ["554 5.7.1 <[10.0.0.9]>: Client host rejected: Access denied", "530 Log in first"])
def test_a_server_that_refuses_who_sends_only_at_the_recipient_is_tried_again(
    database: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext], reply: str
) -> None:
    replies = iter([reply])
    receiver = MailReceiver(contexts[0], lambda verb: next(replies, None) if verb == "RCPT" else None)
    assert sent(database, receiver, contexts[1]) == [(1, None, reply), (1, 250, None)]


def test_a_wrong_password_is_tried_again_since_a_person_can_correct_it_and_is_shown_nowhere(
    database: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    passwords: dict[str, str] = {}
    receiver = MailReceiver(contexts[0], passwords=passwords)
    attempts = sent(database, receiver, contexts[1], user="weir", password="wr0ng")
    assert len(attempts) == 10
    assert all("535" in error and "wr0ng" not in error for _, _, error in attempts)
    assert "wr0ng" not in repr(MailServer("h", 1, True, SENDER, "weir", "wr0ng"))


def test_no_mail_goes_to_a_private_server_that_was_not_allowed_and_none_without_a_server(
    database: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    receiver = MailReceiver(contexts[0])
    attempts = sent(database, receiver, contexts[1], allows_private=False)
    assert {error for _, _, error in attempts} == {"127.0.0.1 is 127.0.0.1, which is no public address"}
    assert receiver.verbs == []

    async def deliver() -> None:
        hold(database, ["globex"], first_lsn=9)
        await send_all(database, now_clock())

    run(deliver)
    (last,) = rows(database, "SELECT DISTINCT error FROM webhook_attempts WHERE account = 'globex'")
    assert "WEIR_SMTP_URL" in last[0]


@given(st.sampled_from(EventType), st.dictionaries(st.sampled_from(["account", "source", "reason", "x"]), st.text()))
def test_no_value_of_an_event_adds_a_header_or_a_recipient(kind: str, data: dict[str, str]) -> None:
    data = {
        **data,
        "account": f"a\r\nBcc: all@example.com\n{data.get('account', '')}",
        "source": "s\nCc: x@example.com",
    }
    event = json.dumps({"type": kind, "timestamp": "2026-11-01T00:00:00+00:00", "data": data}).encode()
    mail = mail_of("evt_1", event, SENDER, TO, datetime(2026, 11, 1, tzinfo=UTC))
    head = bytes(mail).partition(b"\r\n\r\n")[0]
    names = {line.partition(b":")[0] for line in head.split(b"\r\n") if line[:1] not in (b" ", b"\t")}
    assert not {b"Bcc", b"Cc"} & names


@pytest.mark.parametrize(
    "name",
    [
        "=?utf-8?q?x=0D=0AReply-To=3A_x=40y=2Eexample?=",
        "=?utf-8?b?DQpSZXBseS1UbzogeEB5LmV4YW1wbGUNCg0KaGkK?=",
        "=?utf-8?q?" + "a" * 150 + "=0D=0AReply-To:_x@y?=",
        "=?=?utf-8?q?=0AReply-To:_x@y?=?=",
    ],
)
def test_an_encoded_word_in_the_name_of_an_account_is_its_text_and_no_header(name: str) -> None:
    data = {"account": name, "quantity": "1", "meter": "tokens", "received_at": "now"}
    event = {"type": EventType.STRAGGLER_HELD, "timestamp": "2026-11-01T00:00:00+00:00", "data": data}
    mail = mail_of("evt_1", json.dumps(event).encode(), SENDER, TO, datetime(2026, 11, 1, tzinfo=UTC))
    got = message_from_bytes(bytes(mail), policy=policy.default)
    usual = ["From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted"]
    assert got.keys() == [*usual, "Content-Type", "Content-Transfer-Encoding", "MIME-Version"]
    assert name[:60].replace("=?", "= ?") in got["Subject"]
    assert f"account: {name}" in mail.get_content()


@pytest.mark.parametrize(
    "text",
    [
        "ops",
        "a@b@c",
        "a b@example.com",
        "Ops <ops@example.com>",
        "a@example.com,b@example.com",
        "a@b.c\r\nBcc: d",
    ],
)
def test_what_is_not_one_address_is_refused(text: str) -> None:
    assert not is_mail_address(text)
    assert is_mail_address(TO)


def test_a_server_is_named_by_variables_and_a_wrong_one_is_refused_without_its_password() -> None:
    password = {"WEIR_SMTP_PASSWORD": "s3cret"}
    assert MailServer.of({}) is None
    server = MailServer("mail.example.com", 465, True, SENDER, "weir", "s3cret")
    assert MailServer.of({**ENVIRONMENT, **password}) == server
    for wrong in (
        {"WEIR_SMTP_URL": "smtp://weir:s3cret@mail.example.com"},
        {"WEIR_SMTP_URL": "https://mail.example.com"},
        {"WEIR_SMTP_URL": "smtps://mail.example.com"},
        {"WEIR_SMTP_SENDER": "weir"},
        {"WEIR_SMTP_ALLOW_PRIVATE": "yes"},
        {"WEIR_SMTP_PASSWORD": "s3cret\u00e9"},
    ):
        with pytest.raises(CannotRun) as refused:
            MailServer.of({**ENVIRONMENT, **password, **wrong})
        assert "s3cret" not in str(refused.value)
    with pytest.raises(CannotRun):
        MailServer.of(ENVIRONMENT)


def test_the_certificate_is_that_of_the_name_that_is_looked_up_also_where_it_is_not_ascii() -> None:
    """By IDNA 2003, as `ssl` would encode it, it is the name of somebody else: mail.strasse.example."""
    environment = {**ENVIRONMENT, "WEIR_SMTP_URL": "smtps://mail.stra\u00dfe.example"}
    server = MailServer.of(environment)
    assert server is not None
    assert server.host == "mail.xn--strae-oqa.example"
    ipv6 = MailServer.of({**ENVIRONMENT, "WEIR_SMTP_URL": "smtps://[2001:db8::1]:465"})
    assert ipv6 is not None
    assert (ipv6.host, ipv6.port) == ("2001:db8::1", 465)
