"""Metrics of a server for Prometheus, and whether it lives and is ready, over HTTP."""
