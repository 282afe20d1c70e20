"""`python -m services.offset_manager` is `oncelog serve offset_manager`."""

from services.cli.__main__ import serve_role

serve_role("offset_manager")
