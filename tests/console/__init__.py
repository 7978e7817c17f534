"""The console: who may do what, what its pages say and do, and how it looks in a browser."""
