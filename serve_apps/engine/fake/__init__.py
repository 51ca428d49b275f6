"""A stand-in for `vllm serve`: the same command line and HTTP surface, no model.

    python -m serve_apps.engine.fake serve MODEL --port 18200 ...

It tests everything around an engine in a second: boots, failures, counters, streams, and whether an
arm is lossless and answers well. Its tokens are words of a chain whose probabilities are known and
the same in every boot (`chain.Chain`), and it knows the canaries' answers (`scholar`). Speeds,
acceptance and what is wrong with it are knobs (`knobs.Knobs`), and everything it does is seeded.

It passes over what it does not know of a request: `top_p`, `top_k`, penalties, `stop`, `n`.
"""
