"""Pure decisions and arithmetic: no IO, no clock, no environment, no Ray."""
