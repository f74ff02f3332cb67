"""One replica for a whole app, whatever `-n` says: its packages keep state in memory."""

from app_toolkit import DeploymentConfig

ONE = DeploymentConfig(name="app", num_replicas=1)
