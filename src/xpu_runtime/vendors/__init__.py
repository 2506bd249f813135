"""The vendors of devices, and the inventory that they fill."""
