"""Replicas on Ray Serve: Ray places, watches, scales and drains them; a gateway sends requests.

The only folder that imports ray, which `headstart[cluster]` installs.
"""
