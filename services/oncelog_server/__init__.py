"""The Oncelog services: three roles over one replicated log. ARCHITECTURE.md is the map."""

__version__ = "0.1.0"
