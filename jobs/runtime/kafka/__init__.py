"""Kafka: connections, topics, and reading any content of `events`."""
