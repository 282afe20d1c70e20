"""The coordinator: producers and transactions. README.md says what it decides."""
