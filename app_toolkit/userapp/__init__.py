"""The app of the user: loading it, finding its deployments, and shipping its files."""
