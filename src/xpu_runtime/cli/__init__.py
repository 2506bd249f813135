"""`xpu …`: the commands for people and scripts."""
