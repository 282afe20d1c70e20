"""The `oncelog` command, and the composition of roles into processes."""
