"""A database of an older backup does not know the last invoices, and gives their numbers to no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore
import pytest
from obstore.store import ObjectStore

from jobs.close.config import CloseConfig
from jobs.close.series import FOLDER, InvoiceSeries
from jobs.runtime.errors import Refused
from tests.conftest import fresh_database
from tests.pipelines.closing import OCTOBER, Books, books_of


@contextmanager
def used(postgres_url: str) -> Iterator[Books]:
    """A database with the usage of two accounts, and no invoice."""
    with fresh_database(postgres_url) as database:
        for books in books_of(database):
            for account in ("acme", "globex"):
                books.open(account)
                books.use(1_000, account=account)
            books.end(OCTOBER)
            yield books


def test_numbers_of_invoices_that_a_restored_database_does_not_know_are_not_given_again(
    postgres_url: str, tmp_path: Path
) -> None:
    config = CloseConfig()
    series = InvoiceSeries(str(tmp_path), config.issuer)
    with used(postgres_url) as lost:
        assert [row["outcome"] for row in lost.close(series=series, is_dry_run=True)] == ["would be issued"] * 2
        assert [row["outcome"] for row in lost.close(series=series)] == ["issued"] * 2
        assert lost.close(series=series) == []
    with used(postgres_url) as restored:
        for dry in (True, False):
            with pytest.raises(Refused, match=r"invoice number 2, but the database knows them only up to 0.*older"):
                restored.close(series=series, is_dry_run=dry)
        assert restored.rows("SELECT FROM invoices") == []
        other = replace_issuer(config, "another")
        assert [row["total"] for row in restored.close(series=InvoiceSeries(str(tmp_path), "another"), config=other)]
        assert sorted(path.name for path in (tmp_path / FOLDER / config.issuer).iterdir()) == ["2"]


def test_the_next_close_notes_what_an_earlier_one_has_issued_and_not_noted(postgres_url: str, tmp_path: Path) -> None:
    """By an earlier release, or killed in between. It need not issue anything itself."""
    series = InvoiceSeries(str(tmp_path), CloseConfig().issuer)
    with used(postgres_url) as lost:
        assert [row["outcome"] for row in lost.close()] == ["issued"] * 2
        assert lost.close(series=series, is_dry_run=True) == []
        assert not list(tmp_path.rglob("2"))
        assert lost.close(series=series) == []
    with used(postgres_url) as restored, pytest.raises(Refused, match="invoice number 2, but the database knows"):
        restored.close(series=series)


def test_two_closes_may_note_numbers_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    series, remove = InvoiceSeries(str(tmp_path), "weir"), obstore.delete
    series.note(1)

    def removed_by_both(store: ObjectStore, path: str) -> None:
        remove(store, path)
        remove(store, path)

    monkeypatch.setattr(obstore, "delete", removed_by_both)
    series.note(2)
    assert sorted(path.name for path in (tmp_path / FOLDER / "weir").iterdir()) == ["2"]


def replace_issuer(config: CloseConfig, issuer: str) -> CloseConfig:
    return config.model_copy(update={"issuer": issuer})
