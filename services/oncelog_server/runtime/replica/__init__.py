"""One replica of a partition: what it does, and what of it is durable (docs/leadership.md)."""
