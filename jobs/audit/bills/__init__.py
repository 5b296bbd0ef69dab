"""The windows, days, months and corrections that usage must have made, compared with what billing stored."""
