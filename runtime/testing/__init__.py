"""For authors of stores: the conformance suite that holds every store to its contract. Needs pytest."""

from pathlib import Path

import pytest

# Before the suite is imported: its failures then show what they saw.
_modules = (file.stem for file in Path(__file__).parent.glob("*.py") if file.name != "__init__.py")
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _modules))

from .store_conformance import StoreConformance, StoreWithoutTransactionsConformance  # noqa: E402

__all__ = ["StoreConformance", "StoreWithoutTransactionsConformance"]
