"""`python -m webhooks`: sends what is due until SIGTERM. Of several processes one sends, and the others wait.

Reads WEIR_POSTGRES_URL, and WEIR_WEBHOOKS_ALLOW_PRIVATE (true: private addresses and plain HTTP may be called).
For mail: those of `MailServer.of`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import typer

from deployment.asking import asking_database
from deployment.errors import CannotRun
from deployment.stack import POSTGRES_VARIABLE, postgres_url_of
from jobs.runtime.clock import MachineClock
from webhooks.delivering import Delivering
from webhooks.endpoints import listed
from webhooks.mail import Mailer, MailServer
from webhooks.posting import Poster
from webhooks.sender import MAX_RUNNING, send_until

ALLOW_PRIVATE_VARIABLE = "WEIR_WEBHOOKS_ALLOW_PRIVATE"


def main() -> int:
    """Exit status: 2 where the environment lacks something."""
    try:
        if POSTGRES_VARIABLE not in os.environ:
            raise CannotRun(f"{POSTGRES_VARIABLE} must be set.")
        allows_private = allows_private_in(os.environ.get(ALLOW_PRIVATE_VARIABLE))
        run(postgres_url_of(os.environ), allows_private=allows_private)
    except CannotRun as problem:
        typer.echo(str(problem), err=True)
        return 2
    return 0


def allows_private_in(text: str | None) -> bool:
    """What ALLOW_PRIVATE_VARIABLE says; false where it is not set. Raises CannotRun."""
    if text not in (None, "", "true", "false"):
        raise CannotRun(f"{ALLOW_PRIVATE_VARIABLE} is {text!r}, but must be true or false.")
    return text == "true"


def run(postgres_url: str, *, allows_private: bool) -> None:
    """Send until SIGTERM or SIGINT; attempts that are under way end first.

    Raises CannotRun where the database does not answer at the start, or has not this version's schema.
    """
    server = MailServer.of(os.environ)
    listed(postgres_url)
    with asking_database(postgres_url):
        asyncio.run(_send(postgres_url, server, allows_private=allows_private))


async def _send(postgres_url: str, server: MailServer | None, *, allows_private: bool) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    look_up_in_own_threads()
    poster = Poster(allows_private=allows_private)
    try:
        await send_until(
            stopping, postgres_url, Delivering(poster.post, poster.post_to_slack, Mailer(server).send), MachineClock()
        )
    finally:
        await poster.close()


def look_up_in_own_threads() -> None:
    """Let the running loop look up names in enough threads: by default it has six on two cores.

    A thread waits for a name server for longer than an attempt does, so there are more than attempts.
    """
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4 * MAX_RUNNING, "look-up"))


if __name__ == "__main__":
    sys.exit(main())
