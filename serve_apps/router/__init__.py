"""The ingress that spreads clients over engine applications."""
