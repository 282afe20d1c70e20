"""Runnable jobs. `python -m oncelog_spark.jobs.flights` is the one that shows everything."""
