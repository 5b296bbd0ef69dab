"""The frame that schema registry serializers (Confluent, Karapace, Apicurio) put before a record's document."""

from __future__ import annotations

MAGIC_BYTE = b"\0"
FRAME_BYTES = 5
"""The magic byte, and the id of the schema in four."""


def frame_problem(value: bytes | None) -> str | None:
    """What to change where a record begins with such a frame and cannot be read; None where it does not begin so.

    No JSON begins with a 0 byte.
    """
    if value is None or not value.startswith(MAGIC_BYTE) or len(value) < FRAME_BYTES:
        return None
    schema = int.from_bytes(value[1:FRAME_BYTES], "big")
    return (
        f"it begins with the frame of a schema registry (a 0 byte and the schema id {schema}); send plain JSON, by a "
        "serializer of strings or bytes"
    )
