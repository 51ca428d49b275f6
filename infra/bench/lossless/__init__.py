"""False alarms, power and speed of the lossless test, in simulated texts and audits."""
