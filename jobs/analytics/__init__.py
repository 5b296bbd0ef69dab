"""Usage and journal → what declared views measure of outcomes, a pane of a minute at a time."""
