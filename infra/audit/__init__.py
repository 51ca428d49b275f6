"""The audit on real engines on a CPU: which builds and rules it rejects, and what it costs."""
