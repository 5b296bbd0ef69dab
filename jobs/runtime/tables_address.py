"""Where tables may be: what every program that gets WEIR_TABLES says of another place."""

from __future__ import annotations

import re

AZURE = re.compile(r"abfss?://[a-z0-9][-a-z0-9]+@(?P<account>[a-z0-9]{3,24})\.dfs\.core\.windows\.net(?:/.*)?")
"""A container of a storage account: the only form of such an address that both clients understand alike."""


def tables_problem(tables: str) -> str | None:
    """Why no tables can be there, as what follows `WEIR_TABLES`; None for a folder, `s3://` or `abfss://`."""
    scheme, separator, _ = tables.partition("://")
    if not separator or scheme == "s3":
        return None
    if scheme in ("abfs", "abfss"):
        right = AZURE.fullmatch(tables) is not None
        return None if right else "must be as abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER"
    return f"is at {scheme}://, but tables are in a folder, at s3:// or at abfss://: the image has no other client"
