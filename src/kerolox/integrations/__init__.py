"""Frameworks of others on our clients, each in a module of its own with its extra: none is imported
here."""
