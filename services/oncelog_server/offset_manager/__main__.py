"""`python -m oncelog_server.offset_manager` is `oncelog serve offset_manager`."""

from oncelog_server.cli.__main__ import serve_role

serve_role("offset_manager")
