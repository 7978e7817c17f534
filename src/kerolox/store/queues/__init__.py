"""Consume queues and what stands beside them."""
