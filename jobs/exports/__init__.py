"""Exports: usage and what it costs as files for other systems. Each file appears whole or not at all."""
