"""Whether an arm's sampled tokens follow the target's distribution; see docs/lossless.md."""
