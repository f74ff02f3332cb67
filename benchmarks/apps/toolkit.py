"""The same app on app_toolkit, with a deadline for each request. Limits, access log and counters are on by default."""

from routes import router

from app_toolkit import DeploymentConfig, Toolkit

app = Toolkit(deployment=DeploymentConfig(name="app", request_timeout_s=60))
app.include_router(router)
