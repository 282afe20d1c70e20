"""What people and machines see of a process: metrics (`catalogue`, `metrics`) and log lines
(`logs`)."""
