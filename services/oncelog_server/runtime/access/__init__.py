"""Who may: the one place that asks (`guard`), what is written about it (`audit`), how much each
identity may do in a second (`quotas`), and where it is configured (`config`)."""
