"""What the way through Serve's proxy and the router costs, beside the engine's own HTTP."""
