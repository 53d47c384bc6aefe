"""Runnable graphs, each the smallest that shows one thing."""
