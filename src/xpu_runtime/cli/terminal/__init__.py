"""What commands draw with: tables, templates, a whole screen, and streams that may be closed."""
