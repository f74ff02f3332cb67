"""The admin server: metrics, the admin API and the dashboard of an instance."""
