"""The admin process: metrics, the admin API and the dashboard of an instance."""
