"""`make faults`: the real stack under generated traffic, a fault every 10 to 15 s, and then the truth."""
