"""Lineage from a bill's line down to the Kafka records, and the arithmetic between them."""
