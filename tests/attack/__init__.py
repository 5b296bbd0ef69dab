"""Attacks on a running stack that take too long for `make test`: `make attack` runs them."""
