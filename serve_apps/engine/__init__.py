"""The engine process, its supervisor and the Serve deployment around it."""
