"""Each statement of SQL that the guide shows runs in a database that has the guide's first catalog."""

from __future__ import annotations

import re
from decimal import Decimal

import psycopg
import pytest

from catalog.file import load_catalog_file
from catalog.store import store
from jobs.runtime.postgres.job_roles import ROLES
from tests.pages import ROOT, Block, blocks_of


@pytest.mark.parametrize("block", blocks_of("sql"), ids=lambda block: block.name)
def test_each_statement_does_what_the_page_says(database: str, block: Block) -> None:
    store(database, load_catalog_file(ROOT / "examples/catalog.yaml"))
    # The server of the tests has the roles of applications already, with what was granted to them.
    text = re.sub(rf"\b({'|'.join(ROLES)})\b", r"guide_\1", block.text)
    with psycopg.connect(database) as connection:
        if "DROP ROLE" in text:
            connection.execute("CREATE ROLE guide_weir_billing; GRANT SELECT ON usage_windows TO guide_weir_billing")
        connection.execute(text.encode())
        found = connection.execute(
            "SELECT unit_price, per FROM catalog.prices WHERE meter = 'cached_tokens'"
        ).fetchall()
        connection.rollback()  # a role would stay in the server when this test's database is gone
    expected = [(Decimal("0.000000075"), None)] if "cached_tokens" in block.text else []
    assert found == expected, "the row keeps the price of one unit"
