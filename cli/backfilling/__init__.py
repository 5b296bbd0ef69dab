"""`weir backfill`: events of the past, sent the same way as all others, each with when it was received first."""
