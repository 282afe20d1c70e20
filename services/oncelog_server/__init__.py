"""The Oncelog services: three roles over one replicated log. ARCHITECTURE.md is the map."""
