"""Graph authoring."""
