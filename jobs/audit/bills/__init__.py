"""What usage must have made of windows, days, months and corrections, beside what billing stored."""
