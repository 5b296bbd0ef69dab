"""What an audit reads and writes: versions of Delta tables, a snapshot of Postgres, and its own rows."""
