"""What the pages ask: one file per subject; every question takes the `Backend` first and stays within its scope."""
