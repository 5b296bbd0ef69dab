"""What can go wrong on this side of the API."""

from __future__ import annotations


class OutboxError(Exception):
    """The outbox cannot be read or written: the message says why, and what to do. It kept nothing of the call."""


class OutboxFull(OutboxError):
    """It has reached its limit, or the disk is full."""


class OutboxDamaged(OutboxError):
    """The file is no outbox, or is damaged."""


class NotFlushed(Exception):
    """Events are still in the outbox after the time that `flush` was given; they are sent later."""
