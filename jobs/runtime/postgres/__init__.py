"""Postgres: the schema, ownership of a job's tables, and the sink that folds into them."""
