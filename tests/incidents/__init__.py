"""Incidents planted in generated traffic, by brute force and as analytics found them."""
