"""What tests of applications import."""
