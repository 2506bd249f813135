"""The host's part of compute limits: shares of a device's time, decided from what its slices want."""
