"""The settings that all applications share, as pydantic models: meters, dimensions, price attributes, holds."""
