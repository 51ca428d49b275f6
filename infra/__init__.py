"""Everything around the application: local cluster, demo, benchmarks, tiny models, clusters."""
