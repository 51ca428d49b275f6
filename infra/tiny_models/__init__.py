"""Two tiny models made by code: a Qwen3 target and a DFlash2 draft for it."""
