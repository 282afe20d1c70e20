"""Who leads a partition, and when a process may say so (docs/leadership.md): the lease, and the
elections with their rules."""
