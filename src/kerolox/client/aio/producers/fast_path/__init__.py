"""Fast-path sends: what has to be done to them is to encode them, alone or in a batch."""
