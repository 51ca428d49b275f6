"""Results that somebody has in files, read and judged: rows to boots, doubts, a verdict."""
