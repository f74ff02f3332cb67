"""What the contract test runs: the apps that are served, and each engine as the test meets it."""
