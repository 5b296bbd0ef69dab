"""Kafka: how it is reached, what a topic is, and how `events` is read whatever it holds."""
