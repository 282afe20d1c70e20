"""`python -m services.partition_leader` is `oncelog serve partition_leader`."""

from services.cli.__main__ import serve_role

serve_role("partition_leader")
