"""A script that edits dead letters: it reads lines of JSON, and prints an event, or an empty line, for each."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from cli.dead_letter_rows import text_of
from cli.redrive.letters import Letter
from deployment.errors import CannotRun, FileRefused
from metering.instants import rfc3339


@contextmanager
def edited(letters: Iterable[Letter], script: Path) -> Iterator[Iterator[bytes]]:
    """What the program makes of each letter, in their order; empty: it is left out.

    The program has ended well before the first is given. Raises FileRefused where it cannot be run, and CannotRun
    when it ends otherwise than with 0, or prints more or fewer lines than it was given.
    """
    with TemporaryFile() as given, TemporaryFile() as made:
        places = _write(letters, given)
        status = _run(script, given, made)
        lines = sum(1 for _ in made)
        if status != 0:
            place = places[lines] if lines < len(places) else "all that it was given"
            raise CannotRun(f"{script} ended with status {status} after {lines} lines, at {place}. Nothing was sent.")
        if lines != len(places):
            raise CannotRun(
                f"{script} printed {lines} lines for {len(places)} dead letters. It must print one for each, in their "
                "order: the event as one line of JSON, or an empty line to leave it out. Nothing was sent."
            )
        made.seek(0)
        yield (line.removesuffix(b"\n").strip(b"\r") for line in made)


def _write(letters: Iterable[Letter], file: IO[bytes]) -> list[str]:
    """A line of JSON for each record, and the places of the records in the same order."""
    places = []
    for letter in letters:
        file.write(line_of(letter) + b"\n")
        places.append(letter.place.mark)
    file.flush()
    file.seek(0)
    return places


def line_of(letter: Letter) -> bytes:
    """What the program reads of one, as JSON.

    Keys: topic, partition, offset, received_at, reason, violation, key, value, headers (a list of names with texts)
    where it has any, and value_base64 where the value is not UTF-8.
    """
    document = {
        **letter.place._asdict(),
        "received_at": rfc3339(letter.received_at),
        "reason": letter.reason,
        "violation": letter.violation,
        "key": text_of(letter.key),
        "value": text_of(letter.value),
    }
    if letter.headers:
        document["headers"] = [[name, text_of(header)] for name, header in letter.headers]
    value = letter.value or b""
    if not _is_utf8(value):
        document["value_base64"] = base64.b64encode(value).decode()
    return json.dumps(document).encode()


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _run(script: Path, given: IO[bytes], made: IO[bytes]) -> int:
    try:
        status = subprocess.run([script.absolute()], stdin=given, stdout=made, check=False).returncode
    except OSError as problem:
        raise FileRefused(
            f"{script} cannot be run: {problem.strerror}. It must be an executable file (chmod +x); a script "
            "needs a first line such as #!/usr/bin/env python3."
        ) from problem
    made.seek(0)
    return status
