"""Tools and how they are called."""
