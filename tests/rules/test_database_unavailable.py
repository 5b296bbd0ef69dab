"""A Postgres that is away is waited for; one that answers, and will answer the same again, is not."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from jobs.runtime.postgres.unavailable import REMEDY, database_is_unavailable, remedy
from jobs.runtime.transient_errors import transient_error_of

AT = 'connection to server at "10.0.0.1", port 5432 failed: '
AWAY = (
    f"connection failed: {AT}Connection refused\n\tIs the server running on that host?",
    f"{AT}timeout expired",
    "connection timeout expired",
    f"{AT}No route to host",
    f"{AT}server closed the connection unexpectedly\n\tThis probably means the server terminated abnormally",
    'could not translate host name "postgres" to address: Name or service not known',
    "[Errno -2] Name or service not known",
    f"{AT}SSL SYSCALL error: Connection reset by peer",
    "consuming input failed: SSL connection has been closed unexpectedly",
    "sending query and params failed: could not receive data from server: Connection timed out",
    "the connection is lost",
    f"{AT}FATAL:  the database system is starting up",
    f"{AT}FATAL:  the database system is shutting down",
    f"{AT}FATAL:  the database system is in recovery mode",
    f"{AT}FATAL:  the database system is not yet accepting connections\nDETAIL:  Recovery goes on.",
    f"{AT}FATAL:  sorry, too many clients already",
    f'{AT}FATAL:  too many connections for role "weir"',
    f"{AT}FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
    f'{AT}FATAL:  database "weir" is not currently accepting connections',
    "terminating connection due to administrator command",
    "consuming input failed: FATAL:  terminating connection due to administrator command",
    "consuming input failed: FATAL:  arrêt des connexions suite à la demande de l'administrateur",
    f"{AT}FATAL:  server login has been failing, cached error: connect failed (server_login_retry)",
    f"{AT}FATAL:  no more connections allowed (max_client_conn)",
    f"{AT}session is read-only",
    f"{AT}Connection refused\n{AT.replace('10.0.0.1', '10.0.0.2')}FATAL:  the database system is starting up",
)
FINAL = (
    f'{AT}FATAL:  role "weir" does not exist',
    f'{AT}FATAL:  database "weir" does not exist',
    f'{AT}FATAL:  role "weir" is not permitted to log in',
    f'{AT}FATAL:  no pg_hba.conf entry for host "10.0.0.9", user "weir", database "weir", no encryption',
    f'{AT}FATAL:  password authentication failed for user "weir"',
    f'{AT}FATAL:  permission denied for database "weir"',
    f'{AT}FATAL:  unrecognized configuration parameter "weird"',
    f"{AT}fe_sendauth: no password supplied",
    f"{AT}SSL error: certificate verify failed",
    f"{AT}SSL error: tlsv1 alert unknown ca",
    'root certificate file "/none" does not exist\nEither provide the file, or change sslmode to disable verification.',
    f'{AT}server certificate for "a" does not match host name "b"',
    f"{AT}server does not support SSL, but SSL was required",
    f'{AT}Connection refused\n{AT}FATAL:  database "weir" does not exist',
)


@pytest.mark.parametrize("words", AWAY)
def test_an_unavailable_database_or_a_temporary_refusal_is_waited_for(words: str) -> None:
    assert database_is_unavailable(psycopg.OperationalError(words))


@pytest.mark.parametrize("words", FINAL)
def test_a_permanent_refusal_is_not_waited_for_and_has_advice(words: str) -> None:
    error = psycopg.OperationalError(words)
    assert transient_error_of(error) is None
    assert remedy(error) == REMEDY
    assert remedy(OperationalError("SELECT 1", {}, error)) == REMEDY


@pytest.mark.parametrize(
    ("code", "is_away"),
    [
        *[(code, True) for code in ("08006", "53000", "53100", "53200", "53300", "57P01", "57P02", "57P03", "57P05")],
        *[(code, True) for code in ("57014", "58030", "40001", "40P01", "55P03", "25006", "25P03")],
        *[(code, False) for code in ("28000", "28P01", "3D000", "54000", "54001", "55000", "57P04", "F0000")],
        *[(code, False) for code in ("22003", "23505", "25P02", "42501", "42P01", "XX001")],
    ],
)
def test_where_there_is_a_code_it_decides(code: str, is_away: bool) -> None:
    misleading = "FATAL:  role does not exist" if is_away else "the connection is lost, timeout expired"
    error = psycopg.errors.lookup(code)(misleading)
    assert database_is_unavailable(error) is is_away
    assert (transient_error_of(error) is not None) is is_away


def test_an_error_that_is_not_of_a_session_has_no_remedy_here() -> None:
    assert remedy(psycopg.errors.UniqueViolation("duplicate key")) is None
    assert remedy(ValueError("anything")) is None
