"""Pure rules of event time: clocks, windows, lateness, frontier. Standard library only."""
