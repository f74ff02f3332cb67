"""How an instance is operated from outside: its client, the admin API and the dashboard."""
