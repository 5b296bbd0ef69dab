"""This release goes on from an older one's data folder: what was metered stays, and what was open is decided."""

from __future__ import annotations

from deployment.stack import Stack
from tests.e2e import older
from tests.e2e.conftest import weir_at


def test_traffic_that_an_older_release_metered_is_billed_as_its_truth_says(stack: Stack) -> None:
    compared = weir_at(stack.data_dir, "compare", str(stack.data_dir / older.TRUTH))
    assert compared.returncode == 0, compared.stdout + compared.stderr
