"""The `weir` command, one file per command."""
