"""What metering costs: CPU-seconds per million events, near-empty batches, memory, latency. `python -m bench`."""
