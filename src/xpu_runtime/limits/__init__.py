"""How limits are held: the protocol of the backends, and what is common to them."""
