"""Kafka records → journal: every record exactly once, with its disposition."""
