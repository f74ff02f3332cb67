"""An ingress, two models that it calls, and one that both of them call; the same under every engine."""
