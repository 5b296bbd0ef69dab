"""`weir explain`: what it looks up, and how that is printed."""
