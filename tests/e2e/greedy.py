"""An app that asks for more than any machine of the tests has."""

from app_toolkit import DeploymentConfig, Toolkit

app = Toolkit(deployment=DeploymentConfig(name="app", ray_actor_options={"num_gpus": 3}))  # type: ignore[arg-type]
