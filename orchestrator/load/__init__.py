"""The load: workload files, the SSE client, and who asks when in the closed and the open loop."""
