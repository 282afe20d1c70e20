"""`python -m oncelog_server.coordinator` is `oncelog serve coordinator`."""

from oncelog_server.cli.__main__ import serve_role

serve_role("coordinator")
