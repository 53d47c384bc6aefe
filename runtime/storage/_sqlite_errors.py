"""What SQLite's errors mean in our terms."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ..errors import SchemaError, StoreError, StoreUnavailable

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_OUT_OF_REACH = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN})


def is_busy(exc: BaseException) -> bool:
    """Whether somebody else holds the lock that a statement needs."""
    return _code(exc) in _BUSY


def is_transient(exc: BaseException) -> bool:
    """Whether the same statement may pass later."""
    return _code(exc) in _BUSY | _OUT_OF_REACH


def translated(exc: Exception, path: Path) -> StoreError | StoreUnavailable | SchemaError:
    """The error of ours that tells what ``exc`` means for the file at ``path``."""
    if is_busy(exc):
        return StoreUnavailable(f"{path} stayed locked by another process; try again")
    if is_transient(exc):
        return StoreUnavailable(f"{path} cannot be used: {exc}; check the disk and the file's permissions")
    if "no such table" in str(exc) or "no such column" in str(exc):
        return SchemaError(f"{path}: {exc}; run: tenxgraph-temporal setup")
    return StoreError(f"SQLite refused the statement: {type(exc).__name__}: {exc}")


def _code(exc: BaseException) -> int:
    return getattr(exc, "sqlite_errorcode", -1) & 0xFF  # without the extended part
