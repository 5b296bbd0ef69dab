"""Messages of Slack's incoming webhooks, and how their URL is shown: it is all that is needed to post."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import httpx

from webhooks.wording import sentence, shown

HOSTS = ("hooks.slack.com", "hooks.slack-gov.com")
MAX_FIELDS = 10
"""Of a section, as Slack takes them."""


def slack_message(event_id: str, body: bytes) -> bytes:
    """`text` for notifications and for what knows no blocks; `blocks` with the event's values.

    No value is markup: blocks are plain text, and the brackets of `<!channel>` are escaped in `text`. Mattermost and
    Discord call everybody by `@all` or `@everyone` there, and make a link or an image of `[text](URL)`, so a space of
    no width follows each `@` and `]`.
    """
    event: dict[str, Any] = json.loads(body)
    data = event["data"]
    values = [(name, shown(value)) for name, value in data.items() if not isinstance(value, dict | list)]
    fields = [_plain(f"{name}: {value}") for name, value in values if value][:MAX_FIELDS]
    text = sentence(event["type"], data)
    blocks = [
        {"type": "section", "text": _plain(text), **({"fields": fields} if fields else {})},
        {"type": "context", "elements": [_plain(f"{event['type']} {event['timestamp']} {event_id}")]},
    ]
    return json.dumps({"text": _escaped(text), "blocks": blocks}).encode()


def is_of_slack(url: str) -> bool:
    """Whether it is Slack's own: as a webhook it would be shown in lists, and would take nothing."""
    return httpx.URL(url).host in HOSTS


def shown_url(url: str) -> str:
    """A URL without what lets others post by it."""
    parsed = httpx.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode()}/…"


def without_url(text: str, url: str) -> str:
    """`text` without the URL and its path, also where its end was cut within one. Servers answer with the path, too."""
    path = httpx.URL(url).raw_path.decode()
    for secret, instead in ((url, shown_url(url)), (path, "/…"), (unquote(path), "/…")):
        if len(secret) > 1:
            text = text.replace(secret, instead)
            cut = next((length for length in range(len(secret) - 1, 1, -1) if text.endswith(secret[:length])), 0)
            text = f"{text[:-cut]}{instead}" if cut else text
    return text


def _plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}


def _escaped(text: str) -> str:
    return (
        text.replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
        .replace("@", "@\u200b")
        .replace("]", "]\u200b")
    )
