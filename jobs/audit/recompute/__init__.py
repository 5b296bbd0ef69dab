"""The usage that the journal must have made, and the signed rows that correct differences."""
