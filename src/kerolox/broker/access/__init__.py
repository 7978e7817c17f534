"""Access control in the broker: the gate before all handlers."""
