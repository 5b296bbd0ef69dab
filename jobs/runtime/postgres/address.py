"""Which schema of a database is Weir's: the database's address carries it, so every session starts in it.

libpq sends the `options` of an address when a session begins. So the schema depends neither on the role's settings nor
on the client, and a name that does not exist in it is not found in another schema.
"""

from __future__ import annotations

import re
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

SCHEMA = "weir"
SCHEMA_VARIABLE = "WEIR_POSTGRES_SCHEMA"
RESERVED = ("public", "catalog", "information_schema")
"""`catalog` is Weir's, too, but people and other systems write to it."""

NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SEARCH_PATH = re.compile(r"(?:-c\s*|--)search_path\s*=\s*(\S+)")


def in_schema(url: str, schema: str | None = None) -> str:
    """The address, which names the schema that its sessions begin in.

    `schema` is WEIR_POSTGRES_SCHEMA; without it a `search_path` in the address is used, else SCHEMA. What is no
    address is returned unchanged: connecting fails. Raises ValueError for a name that cannot be Weir's, and for
    an address that names another schema than `schema`.
    """
    try:
        options = options_of(url)
    except (psycopg.ProgrammingError, UnicodeDecodeError):
        return url
    carried = _first(options)
    if schema:
        refuse_unfit_schema(schema)
    if carried is None:
        return _with_options(url, f"{options} -csearch_path={schema or SCHEMA}".strip())
    if schema and carried != schema:
        raise ValueError(f"is {schema!r}, but the search_path in WEIR_POSTGRES_URL begins with {carried!r}")
    return url


def schema_of(url: str) -> str:
    """The schema that an address of `in_schema` carries; SCHEMA for any other."""
    return _first(options_of(url)) or SCHEMA


def options_of(url: str) -> str:
    """The `options` of an address: who connects with more of them passes these on. Raises as psycopg does."""
    return str(conninfo_to_dict(url).get("options") or "")


def refuse_unfit_schema(schema: str) -> None:
    """Raises ValueError for what is no name of a schema that could be Weir's own."""
    if not is_fit_for_schema(schema):
        raise ValueError(
            f"is {schema!r}, which is no name for a schema of Weir's own: small letters, digits and _, at most 63, and "
            f"none of {', '.join(RESERVED)} or pg_…"
        )


def is_fit_for_schema(schema: str) -> bool:
    """Whether a schema of this name can be made: small letters, digits and _, at most 63, and none of Postgres' own."""
    return NAME.fullmatch(schema) is not None and schema not in RESERVED and not schema.startswith("pg_")


def _first(options: str) -> str | None:
    """The schema that a search_path begins with; None where that cannot be Weir's, as in `"$user", public`."""
    paths = _SEARCH_PATH.findall(options)
    first = paths[-1].partition(",")[0].strip('"') if paths else ""
    return first if is_fit_for_schema(first) else None


def _with_options(url: str, options: str) -> str:
    """The same form of address: an URL stays one. libpq takes the last of two `options`."""
    if url.startswith(("postgresql://", "postgres://")):
        extended = f"{url}{'&' if '?' in url else '?'}options={quote(options, safe='')}"
        if options_of(extended) == options:
            return extended
    return make_conninfo(url, options=options)
