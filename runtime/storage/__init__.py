"""Stores: versioned thread state and the tool ledger."""
