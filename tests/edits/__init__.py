"""Random edits of the catalog by SQL while traffic flows and what captures it is killed; then every price is asked."""
