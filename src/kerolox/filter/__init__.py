"""Subscriptions: which messages of a topic a consumer wants."""
