"""The audit of a running engine: what it samples against what it should, step by step.

`plugin` wraps the sampling of vLLM's V2 model runner in an audit boot and writes records; `nulls`
computes each observation with its exact mean; `records` is the file between the engine and the
judge. Off in every other boot.
"""
