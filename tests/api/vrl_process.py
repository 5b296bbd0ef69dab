"""Vector's language for transforms, as `pyvrl` has it, run where that is installed and Weir is not.

Reads a JSON object with `source`, a program, and `lines` of a log. Prints for each line what it becomes, or null where
Vector would drop it.
"""

from __future__ import annotations

import json
import sys

import pyvrl


def main() -> None:
    """Transform each line as the source `file` reads it."""
    given = json.load(sys.stdin)
    transform = pyvrl.Transform(given["source"])
    read = {"file": "calls.jsonl", "host": "gateway", "source_type": "file", "timestamp": "2026-11-29T10:00:01Z"}
    print(json.dumps([transformed(transform, {**read, "message": line}) for line in given["lines"]]))


def transformed(transform: pyvrl.Transform, event: dict[str, str]) -> object:
    """The event, or None for one that the program fails on."""
    try:
        return transform.remap(event)
    except ValueError:
        return None


if __name__ == "__main__":
    main()
