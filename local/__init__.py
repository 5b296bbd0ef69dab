"""The laptop: broker, database, supervisor, traffic, and the `weir` command."""
