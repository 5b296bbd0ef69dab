"""Changes that need confirmation: beforehand, by an option, or at the terminal."""

from __future__ import annotations

from typing import ClassVar

from deployment.errors import CannotRun


class NeedsAgreement(CannotRun):
    """Nothing is changed; the message says what would be, and how to agree."""

    question: ClassVar[str]
    """The question on a terminal, after the message."""
