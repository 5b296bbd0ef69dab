"""What tasks report of the lsns that they have read proves a batch as exactly as its lsns themselves."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PythonException

from jobs.runtime.batch import runs_in, seen_in, seen_in_runs
from jobs.runtime.transient_errors import transient_error_of
from metering.vocabulary import Cause

LSNS = st.lists(st.integers(1, 12), max_size=14)


def column(lsns: list[int]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(lsns, pa.int64())])


@given(st.lists(LSNS, min_size=1, max_size=4))
def test_the_runs_of_all_parts_say_what_the_lsns_together_say(parts: list[list[int]]) -> None:
    runs = pl.concat([runs_in(column(part)) for part in parts])
    assert seen_in_runs(runs) == seen_in(column([lsn for part in parts for lsn in part]))


@given(st.permutations(range(1, 9)), st.integers(0, 8))
def test_parts_of_consecutive_rows_in_any_order_prove_the_batch(lsns: list[int], cut: int) -> None:
    runs = pl.concat([runs_in(column(lsns[:cut])), runs_in(column(lsns[cut:]))])
    assert seen_in_runs(runs).proves(1)
    assert not seen_in_runs(runs).proves(2)


def test_a_worker_that_does_not_reach_the_store_is_waited_for() -> None:
    """Its error comes from Spark as text, with the traceback of the worker."""
    unavailable = "OSError: Generic S3 error: error sending request for url (http://store/weir)"
    waits = transient_error_of(PythonException(f"Traceback (most recent call last):\n{unavailable}"))
    assert waits is not None
    assert waits.cause is Cause.STORE
    assert transient_error_of(PythonException("Traceback (most recent call last):\nValueError: no")) is None
    assert transient_error_of(AnalysisException("the column timed out is not known")) is None
    steps = '  File "pieces.py", line 70, in of_task\n    with pq.ParquetFile(\n' * 20
    waits = transient_error_of(PythonException(f"Traceback (most recent call last):\n{steps}{unavailable}\n  refused"))
    assert str(waits).startswith("PythonException: Generic S3 error: error sending request"), "not a worker's files"


FAKE = "Traceback (most recent call last):\nOSError: timed out"


@pytest.mark.parametrize(
    "said", ["timed out", "OSError: timed out", 'status": 500', "a\nOSError: connection refused", f"a\n{FAKE}"]
)
def test_a_worker_that_fails_at_a_record_is_not_waited_for_whatever_the_record_says(said: str) -> None:
    """Else the record would be tried for ever instead of being put aside."""
    steps = '  File "validator.py", line 1, in build\n    raise\n'
    quoting = PythonException(f"Traceback (most recent call last):\n{steps}ComputeError: no number: [{said}]")
    assert transient_error_of(quoting) is None
