"""`weir backfill`: events of the past, sent like all others, each with its first reception."""
