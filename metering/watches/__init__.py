"""Stored queries: conditions on outcomes, which each outcome runs past."""
