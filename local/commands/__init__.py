"""The `weir` subcommands, one module each."""
