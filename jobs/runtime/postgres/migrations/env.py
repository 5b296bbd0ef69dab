"""Alembic's entry: runs the migrations on the connection that `jobs.runtime.postgres.schema.migrate` passes."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=None, version_table_schema=context.config.attributes["schema"])
with context.begin_transaction():
    context.run_migrations()
