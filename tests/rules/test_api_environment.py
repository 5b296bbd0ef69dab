"""What is wrong in the API's environment is a sentence that names the variable."""

from __future__ import annotations

import pytest

from api.__main__ import DEFAULT_PORT, PORT_VARIABLE, port_in
from api.database_poll import READ_EVERY_SECONDS, SILENT_AFTER_SECONDS
from api.server import (
    ACCOUNT_ATTRIBUTE_VARIABLE,
    EVENTS_PER_MINUTE_VARIABLE,
    MAX_LAG_VARIABLE,
    REQUESTS_PER_SECOND_VARIABLE,
    seconds_in,
    services_of,
)
from deployment.errors import CannotRun
from deployment.stack import KAFKA_VARIABLE, POSTGRES_VARIABLE


@pytest.mark.parametrize("text", ["²", "٣", "80a", "-1", "8 0"])
def test_an_invalid_number_is_refused_with_its_variable(text: str) -> None:
    with pytest.raises(CannotRun, match=f"{PORT_VARIABLE} is '{text}', but must be a port"):
        port_in({PORT_VARIABLE: text}, PORT_VARIABLE, DEFAULT_PORT)
    with pytest.raises(CannotRun, match=f"{MAX_LAG_VARIABLE} is '{text}', but must be whole seconds"):
        seconds_in({MAX_LAG_VARIABLE: text}, MAX_LAG_VARIABLE, 1)


@pytest.mark.parametrize("variable", [REQUESTS_PER_SECOND_VARIABLE, EVENTS_PER_MINUTE_VARIABLE])
def test_a_rate_limit_that_is_no_number_is_refused_with_its_variable(variable: str) -> None:
    addresses = {KAFKA_VARIABLE: "127.0.0.1:1", POSTGRES_VARIABLE: "postgresql://127.0.0.1:1/none"}
    with pytest.raises(CannotRun, match=f"{variable} is '1/s', but must be a whole number"):
        services_of({**addresses, variable: "1/s"}, "test")


def test_what_is_left_out_has_its_default() -> None:
    assert port_in({}, PORT_VARIABLE, DEFAULT_PORT) == int(DEFAULT_PORT)
    assert (seconds_in({}, MAX_LAG_VARIABLE, 7), seconds_in({MAX_LAG_VARIABLE: ""}, MAX_LAG_VARIABLE, 7)) == (7, 7)


def test_a_revoked_key_is_refused_within_five_seconds_also_on_a_session_that_was_silent() -> None:
    assert READ_EVERY_SECONDS + SILENT_AFTER_SECONDS <= 5


def test_the_attribute_that_names_the_account_is_weirs_own_unless_one_is_given() -> None:
    addresses = {KAFKA_VARIABLE: "127.0.0.1:1", POSTGRES_VARIABLE: "postgresql://127.0.0.1:1/none"}
    for given, expected in ((None, "weir.account"), ("", "weir.account"), ("tenant.id", "tenant.id")):
        variables = addresses if given is None else {**addresses, ACCOUNT_ATTRIBUTE_VARIABLE: given}
        services = services_of(variables, "test")
        services.producer.close()
        assert services.account_attribute == expected
