"""A first application: two ingresses, and one endpoint of each kind."""
