"""Exactly once: half messages, the decision which of them count, and their ends."""
