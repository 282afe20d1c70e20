"""What is measured, how: benchmarks/README.md."""
