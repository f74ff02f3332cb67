"""What the control plane and the data plane tell each other: identities, routes, targets, loads."""
