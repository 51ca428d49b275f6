"""The closed-loop load: workload files, the SSE client and the streams."""
