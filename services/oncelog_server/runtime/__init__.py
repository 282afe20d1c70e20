"""The only code that opens a file, a socket or a clock: the ports of `core`, fulfilled."""
