"""`weir dead-letters redrive`: select dead letters, edit them with a script, and validate them offline."""
