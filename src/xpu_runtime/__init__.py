"""The XPU container runtime: gives containers slices of accelerators, and holds their limits."""
