"""Who may do what in the console: users, sessions, roles, tokens, limits, and who did it."""
