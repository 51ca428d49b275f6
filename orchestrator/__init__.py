"""specpilot: finds, proves and promotes a speculative-decoding configuration."""
