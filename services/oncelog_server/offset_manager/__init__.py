"""Consumer groups: committed and pending offsets. README.md says what this role decides."""
