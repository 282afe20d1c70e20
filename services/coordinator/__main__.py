"""`python -m services.coordinator` is `oncelog serve coordinator`."""

from services.cli.__main__ import serve_role

serve_role("coordinator")
