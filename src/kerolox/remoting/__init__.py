"""The only place that owns sockets."""

AUDIT_LOGGER = "kerolox.audit"
"""The logger of audit lines (:mod:`kerolox.remoting.audit`)."""
