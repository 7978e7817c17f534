"""Sending, without I/O: headers, queue choice, retries, transactions, requests."""
