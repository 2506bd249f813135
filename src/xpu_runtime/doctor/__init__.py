"""`xpu doctor`: what is missing or wrong on this node, and what to do about it; and the bug report."""
