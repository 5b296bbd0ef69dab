"""Kafka: connections, topics, and reading `events` whatever it contains."""
