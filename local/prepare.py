"""`python -m local.prepare database|topics`: what must be there before the applications are installed on a cluster.

Waits until the server answers, as it may have been started a moment ago; `topics` then makes those that are missing
and refuses those that cannot carry metering. Settings come from `WEIR_POSTGRES_URL` and `WEIR_KAFKA_*`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import psycopg

from local import broker
from local.errors import CannotRun

PATIENCE_SECONDS = 180.0
PAUSE_SECONDS = 1.0


def prepare_database(environment: Mapping[str, str], patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Return when the database answers. Raises `CannotRun` with its last refusal."""

    def refusal() -> str | None:
        try:
            psycopg.connect(_needed(environment, "WEIR_POSTGRES_URL"), connect_timeout=5).close()
        except psycopg.OperationalError as problem:
            return f"The database does not answer: {str(problem).strip()}"
        return None

    _until_accepted(refusal, patience_seconds)


def prepare_topics(environment: Mapping[str, str], patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Return when the broker has Weir's topics, as they must be. Raises `CannotRun`."""
    bootstrap = _needed(environment, "WEIR_KAFKA_BOOTSTRAP")
    silence = f"Kafka at {bootstrap} does not answer: check the address, and what secures it."
    _until_accepted(lambda: None if broker.answers(bootstrap) else silence, patience_seconds)
    broker.ensure_topics(bootstrap)


def _until_accepted(refusal: Callable[[], str | None], patience_seconds: float) -> None:
    deadline = time.monotonic() + patience_seconds
    while (sentence := refusal()) is not None:
        if time.monotonic() > deadline:
            raise CannotRun(sentence)
        time.sleep(PAUSE_SECONDS)


def _needed(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise CannotRun(f"{name} is not set.")
    return environment[name]


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Exit status: 0 when it is there, 1 when it is not, 2 for a word that is neither."""
    steps = {"database": prepare_database, "topics": prepare_topics}
    if len(arguments) != 1 or arguments[0] not in steps:
        print("usage: python -m local.prepare database|topics", file=sys.stderr)
        return 2
    try:
        steps[arguments[0]](environment)
    except CannotRun as obstacle:
        print(obstacle, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
