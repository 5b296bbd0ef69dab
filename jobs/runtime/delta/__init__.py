"""Delta tables: one driver's commits, reading in lsn order, and file retention."""
