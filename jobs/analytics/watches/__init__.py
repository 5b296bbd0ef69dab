"""Stored queries (`weir watch`): every outcome runs past all of them, and hits are committed with the position."""
