"""Calls to other systems: events of an outbox in Postgres, posted by Standard Webhooks 1.0."""
