"""Known vulnerabilities of what the project installs, and whether an environment has them."""
