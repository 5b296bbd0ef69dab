"""Stored rows compared with expected rows: the differences, row by row."""
