"""The only code that opens a file, a socket or a clock: the ports of `services/core`, fulfilled."""
