"""Sends usage to Weir's API and loses none: events are on disk until the API has taken them.

with Client("https://events.example.com", key, outbox="usage.outbox") as client:
    client.send(openai_usage(response, account="acme", source="chat-backend"))
"""

from weir_client.async_client import AsyncClient
from weir_client.client import Client
from weir_client.courier import Delivery
from weir_client.errors import NotFlushed, OutboxDamaged, OutboxError, OutboxFull
from weir_client.usage import anthropic_usage, gemini_usage, litellm_callback, openai_usage, usage_event

__all__ = [
    "AsyncClient",
    "Client",
    "Delivery",
    "NotFlushed",
    "OutboxDamaged",
    "OutboxError",
    "OutboxFull",
    "anthropic_usage",
    "gemini_usage",
    "litellm_callback",
    "openai_usage",
    "usage_event",
]
