"""How often the verdict is right, over simulated studies."""
