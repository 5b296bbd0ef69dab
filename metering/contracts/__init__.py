"""What an event is: a JSON Schema per type and version, and what is made of it."""
