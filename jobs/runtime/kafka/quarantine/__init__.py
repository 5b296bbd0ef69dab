"""Finding the record that ends drivers: attempts, the raw scan, and the records that become dead letters."""
