"""The configuration: read, checked, and compiled for the start of containers."""
