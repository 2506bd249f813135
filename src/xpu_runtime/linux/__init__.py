"""What the kernel and the C library offer, without a policy."""
