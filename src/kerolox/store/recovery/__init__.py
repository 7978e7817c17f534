"""What opening a store does about an unclean stop."""
