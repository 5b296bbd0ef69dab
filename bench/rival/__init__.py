"""The same minute sums by others: Flink SQL, and one process with Polars, on the same events and the same machine."""
