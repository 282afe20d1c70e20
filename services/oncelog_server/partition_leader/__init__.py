"""The partition leader: topic data. Idempotence, fencing, and what readers see, in which order."""
