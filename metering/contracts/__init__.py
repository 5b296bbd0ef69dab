"""Contracts: what an event may hold, as one JSON Schema per type and version."""
