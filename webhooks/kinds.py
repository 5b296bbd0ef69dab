"""Kinds of endpoints."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What an endpoint is, which decides the form of a message and how it is sent."""

    WEBHOOK = "webhook"
    """Standard Webhooks 1.0: the event itself, signed."""
    SLACK = "slack"
    """An incoming webhook of Slack, or of what takes the same messages (Mattermost, Discord): a text for people."""
    MAIL = "mail"
    """An address of mail, by SMTP."""
