"""The same app on app_toolkit."""

from routes import router

from app_toolkit import Toolkit

app = Toolkit()
app.include_router(router)
