"""Patterns of outcomes: a subset of MATCH_RECOGNIZE (SQL:2016), decided by what is committed and by nothing else."""
