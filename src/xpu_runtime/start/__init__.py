"""The start of a container: hook mode, spec mode, and our edit of its spec."""
