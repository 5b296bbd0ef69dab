"""The queries of the pages: one file per subject; each takes the `Backend` first and stays within its scope."""
