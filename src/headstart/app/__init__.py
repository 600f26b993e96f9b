"""The program: command line, assembly of a server, models from the hub."""
