"""What is wrong in the API's environment is a sentence that names the variable."""

from __future__ import annotations

import pytest

from api.__main__ import DEFAULT_PORT, PORT_VARIABLE, port_in
from api.server import MAX_LAG_VARIABLE, seconds_in
from deployment.errors import CannotRun


@pytest.mark.parametrize("text", ["²", "٣", "80a", "-1", "8 0"])
def test_an_invalid_number_is_refused_with_its_variable(text: str) -> None:
    with pytest.raises(CannotRun, match=f"{PORT_VARIABLE} is '{text}', but must be a port"):
        port_in({PORT_VARIABLE: text}, PORT_VARIABLE, DEFAULT_PORT)
    with pytest.raises(CannotRun, match=f"{MAX_LAG_VARIABLE} is '{text}', but must be whole seconds"):
        seconds_in({MAX_LAG_VARIABLE: text}, MAX_LAG_VARIABLE, 1)


def test_what_is_left_out_has_its_default() -> None:
    assert port_in({}, PORT_VARIABLE, DEFAULT_PORT) == int(DEFAULT_PORT)
    assert (seconds_in({}, MAX_LAG_VARIABLE, 7), seconds_in({MAX_LAG_VARIABLE: ""}, MAX_LAG_VARIABLE, 7)) == (7, 7)
