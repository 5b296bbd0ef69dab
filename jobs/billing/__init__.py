"""Usage → usage windows and stragglers: quantities and money per minute."""
