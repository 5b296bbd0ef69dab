"""What a running Weir is, to those who look at it or wait for it, on a laptop or a cluster."""
