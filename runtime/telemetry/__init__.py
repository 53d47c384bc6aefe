"""Metrics, traces and logs. This package's modules are imported one by one; only what has no other needs is here."""

from .metrics import Metrics

__all__ = ["Metrics"]
