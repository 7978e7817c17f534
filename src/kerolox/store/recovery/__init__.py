"""Recovery: what opening a store does about an unclean stop."""
