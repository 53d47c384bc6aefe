"""Agent graphs that run durably on Temporal."""
