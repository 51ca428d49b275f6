"""A Ray cluster and an MLflow server on this machine's loopback, for the demo and the tests."""
