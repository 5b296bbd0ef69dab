"""Accepted events published again in the order of their time: `events.ordered`."""
