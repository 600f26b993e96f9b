"""Measuring: workloads, speeds and what speculation earns."""
