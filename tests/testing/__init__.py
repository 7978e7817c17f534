"""The broker for tests that users get: :mod:`kerolox.testing` and its fixtures."""
