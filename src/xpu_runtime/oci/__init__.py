"""What the OCI runtime specification defines: command lines, specs, states, bundles."""
