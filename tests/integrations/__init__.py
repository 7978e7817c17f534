"""Frameworks of others on our clients."""
