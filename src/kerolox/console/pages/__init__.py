"""Pages and actions, a module for each subject. :mod:`kerolox.console.routes` has their table."""
