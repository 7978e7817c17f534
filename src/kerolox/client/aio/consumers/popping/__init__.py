"""Messages that are popped: requests, acknowledgements, leases that are kept."""
