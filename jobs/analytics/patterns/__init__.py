"""Outcomes → matches of declared patterns, in the transaction that moves analytics' position."""
