"""Postgres: the schema, who may write for a job, and the sink that folds into it."""
