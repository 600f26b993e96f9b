"""What `headstart.testing` offers to tests of speculators."""
