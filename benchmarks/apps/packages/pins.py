"""Pin an app to one replica, independent of `-n`, because its packages keep state in memory; or pin its sessions."""

from app_toolkit import DeploymentConfig

ONE = DeploymentConfig(name="app", num_replicas=1)
BY_COOKIE = DeploymentConfig(name="app", affinity="cookie")
