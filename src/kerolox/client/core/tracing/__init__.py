"""Message traces, without I/O: records, their text, the hook that makes them."""
