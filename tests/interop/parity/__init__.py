"""Every command of mqadmin at our servers and at the Java servers: the same output and effect."""
