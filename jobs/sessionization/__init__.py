"""Journal → sessions: a user's activity, cut where it pauses for more than the gap."""
