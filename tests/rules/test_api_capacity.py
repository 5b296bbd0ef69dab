"""What a client is told when the server, and not its key, has reached a limit."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import pytest
from starlette.requests import Request
from starlette.responses import Response

from api.body_budget import BodyBudget
from api.ingestion_lag import refuse_lag
from api.models import refuse_uncounted
from api.problems import Problem, problem_handler, unavailable
from api.producer import MAX_PENDING_BYTES, _too_many
from tests.clocks import HandClock

REQUEST = Request({"type": "http", "method": "POST", "path": "/v1/events", "headers": [], "query_string": b""})


def answered(problem: Problem, clock: HandClock) -> Response:
    async def answer() -> Response:
        return await problem_handler(clock)(REQUEST, problem)

    return asyncio.run(answer())


def bodies() -> Problem:
    with BodyBudget(100).request() as reserve, pytest.raises(Problem) as refused:
        reserve(101)
    return refused.value


def lag() -> Problem:
    with pytest.raises(Problem) as refused:
        refuse_lag(86_401.5, 86_400)
    return refused.value


@pytest.mark.parametrize(
    ("problem", "limit", "seconds", "draft"),
    [
        (
            _too_many(),
            MAX_PENDING_BYTES,
            2,
            {"ratelimit-policy": '"kafka";q=33554432;qu="content-bytes"', "ratelimit": '"kafka";r=0;t=2'},
        ),
        (
            bodies(),
            100,
            2,
            {"ratelimit-policy": '"bodies";q=100;qu="content-bytes"', "ratelimit": '"bodies";r=0;t=2'},
        ),
        (lag(), 86_400, 60, {}),
    ],
    ids=["kafka", "bodies", "lag"],
)
def test_a_limit_of_the_server_is_answered_with_the_headers_of_a_keys(
    problem: Problem, limit: int, seconds: int, draft: dict[str, str]
) -> None:
    clock = HandClock()
    response = answered(problem, clock)
    assert response.status_code == HTTPStatus.TOO_MANY_REQUESTS
    found = {name: value for name, value in response.headers.items() if "ratelimit" in name or name == "retry-after"}
    assert found == {
        "retry-after": str(seconds),
        "x-ratelimit-limit": str(limit),
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": f"{clock.now().timestamp() + seconds:.0f}",
        **draft,
    }


def test_a_rank_by_users_is_refused_where_they_were_not_counted() -> None:
    refuse_uncounted([{"users": 0}])
    with pytest.raises(Problem, match="ask for a shorter time") as refused:
        refuse_uncounted([{"users": None}])
    assert refused.value.status is HTTPStatus.BAD_REQUEST


def test_an_answer_without_a_limit_has_none_of_them() -> None:
    response = answered(unavailable("Kafka does not answer."), HandClock())
    assert response.headers["retry-after"] == "5"
    assert not [name for name in response.headers if "ratelimit" in name]
