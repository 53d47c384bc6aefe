"""Activities: the only place where user code runs."""
