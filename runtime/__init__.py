"""Everything that does not know Temporal workflows: authoring, state, tools, storage."""
