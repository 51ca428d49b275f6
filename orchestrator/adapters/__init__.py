"""The real world behind the ports: Ray Serve, MLflow, the node, the clock."""
