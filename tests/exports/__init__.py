"""Exports: what other systems read of Weir."""
