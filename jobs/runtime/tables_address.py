"""Where tables may be: what every program that gets WEIR_TABLES says of another place."""

from __future__ import annotations


def tables_problem(tables: str) -> str | None:
    """Why no tables can be there, as what follows `WEIR_TABLES`; None for a folder or `s3://`."""
    scheme, separator, _ = tables.partition("://")
    if not separator or scheme == "s3":
        return None
    return f"is at {scheme}://, but tables are in a folder or at s3://: the image has no other client"
