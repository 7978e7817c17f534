"""Reports on a whole cluster: traffic, status, exports, monitoring."""
