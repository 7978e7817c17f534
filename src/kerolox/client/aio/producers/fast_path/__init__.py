"""Fast-path sends: they need nothing but encoding, alone or in a batch."""
