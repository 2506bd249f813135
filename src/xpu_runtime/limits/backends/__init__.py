"""The backends: each file here is one, and is registered by that."""
