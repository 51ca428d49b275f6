"""What runs inside Ray Serve: the engine, the router and the builders of their applications."""
