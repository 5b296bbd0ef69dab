"""A page's filters, chosen by the viewer and kept in the URL: a link shows what its sender saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from dashboard.panel import ask_every
from dashboard.queries.accounts import MAX_ACCOUNTS, Accounts, read_accounts

ACCOUNTS_SECONDS = 30.0


def choose_account(label: str = "Account", everyone: str = "All accounts") -> str | None:
    """One account, or None for all that may be seen; `?account=` in the URL."""
    accounts = ask_every(ACCOUNTS_SECONDS, read_accounts).value or Accounts((), is_cut=False)
    if accounts.is_cut:
        prefix = st.text_input(
            f"{label} begins with",
            key="account_prefix",
            placeholder=f"more than {MAX_ACCOUNTS:,} accounts",
            width=220,
        )
        accounts = ask_every(ACCOUNTS_SECONDS, read_accounts, prefix).value or accounts if prefix else accounts
    # New options are accepted so that a link outlives an outage, in which no account is known.
    chosen: str | None = st.selectbox(
        label,
        options=accounts.names,
        index=None,
        placeholder=everyone,
        accept_new_options=True,
        key="account",
        width=260,
        bind="query-params",
    )
    return chosen or None


def choose_hours(options: Sequence[int], default: int) -> int:
    """How far back; `?hours=6h` in the URL."""
    words = {hours: f"{hours}h" if hours < 48 else f"{hours // 24}d" for hours in options}
    return int(_choose("Time", "hours", {str(hours): word for hours, word in words.items()}, str(default)))


def choose(label: str, key: str, words: Mapping[str, str]) -> str:
    """One of a few (value → its word), the first by default; `?<key>=<word>` in the URL."""
    return _choose(label, key, words, next(iter(words)))


def _choose(label: str, key: str, words: Mapping[str, str], default: str) -> str:
    chosen: str | None = st.segmented_control(
        label, options=list(words), default=default, format_func=words.__getitem__, key=key, bind="query-params"
    )
    return chosen or default
