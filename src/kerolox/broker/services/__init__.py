"""What the broker does by itself, beside the requests."""
