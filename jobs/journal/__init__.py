"""How rows of the journal are read, by applications, audit and `weir explain` alike."""
