"""How much of clients' bodies a server holds at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from api.problems import Problem

MAX_HELD_BYTES = 64 << 20
"""Of bodies, unpacked, that are not answered yet. Judging one takes several times its size."""
RETRY_AFTER_SECONDS = 2


class Held:
    """Counts the bytes of all requests; of one thread."""

    def __init__(self, most: int = MAX_HELD_BYTES) -> None:
        self.size_bytes = 0
        self._most = most

    @contextmanager
    def request(self) -> Iterator[Callable[[int], None]]:
        """A call that counts further bytes of a request until the block ends. It raises Problem (429) beyond `most`."""
        own = 0

        def hold(size_bytes: int) -> None:
            nonlocal own
            if self.size_bytes + size_bytes > self._most:
                raise Problem(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    "More comes in than this server can hold: send the same request again later.",
                    {"Retry-After": str(RETRY_AFTER_SECONDS)},
                )
            own += size_bytes
            self.size_bytes += size_bytes

        try:
            yield hold
        finally:
            self.size_bytes -= own
