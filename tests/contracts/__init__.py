"""What shipped contracts accept, kept: a changed one may not refuse it. `python -m tests.contracts` keeps more."""
