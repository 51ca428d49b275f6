"""A stand-in for `vllm serve`: the same command line and HTTP surface, no model.

    python -m serve_apps.engine.fake serve MODEL --port 18200 ...

It tests everything around an engine in a second: boots, failures, counters, streams. Its tokens are
words, its speeds and acceptance are knobs (`knobs.Knobs`), and everything it does is seeded.
"""
