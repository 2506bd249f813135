"""From variables and annotations to a request that is checked."""
