"""`python -m oncelog_server.partition_leader` is `oncelog serve partition_leader`."""

from oncelog_server.cli.__main__ import serve_role

serve_role("partition_leader")
