"""What is durable: the high watermark over the in-sync replicas. Followers come later."""
