"""Kafka's wire format: record batches as they lie in the log, read in constant memory (README.md says why)."""
