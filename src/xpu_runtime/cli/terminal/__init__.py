"""Drawing for commands: tables, templates, a whole screen, and streams that may be closed."""
