"""Delta tables: one driver's commits, how a table is read in lsn order, and how long its files are kept."""
