"""The `headstart` command. One file is one command; each imports its world only when it runs."""
