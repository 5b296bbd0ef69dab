"""`weir topics`: create and check the topics that metering needs on your own Kafka."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from deployment.errors import CannotRun

POLL_SECONDS = 1.0


def topics(
    *, timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for the brokers.")] = 60.0
) -> None:
    """Create missing topics, and check the settings of existing ones.

    It connects to WEIR_KAFKA_BOOTSTRAP. Exit status 1 if a topic's settings would make bills wrong; settings that
    only put events at risk are printed.
    """
    from deployment.stack import KAFKA_VARIABLE
    from deployment.topics import answers, ensure_topics, topic_doubts

    bootstrap = os.environ.get(KAFKA_VARIABLE)
    if not bootstrap:
        raise CannotRun(
            f"{KAFKA_VARIABLE} is not set: set it to your brokers. For a stack on this machine `weir up` "
            "makes the topics."
        )
    deadline = time.monotonic() + timeout
    while not answers(bootstrap):
        if time.monotonic() > deadline:
            raise CannotRun(
                f"Kafka at {bootstrap} has not answered for {timeout:g} s: see that it runs, that {KAFKA_VARIABLE} "
                "names it, that it can be reached from here, and that the credentials are right."
            )
        time.sleep(POLL_SECONDS)
    ensure_topics(bootstrap)
    for doubt in topic_doubts(bootstrap):
        typer.echo(doubt, err=True)
    typer.echo(f"All topics are on {bootstrap}, with the settings that metering needs.")
