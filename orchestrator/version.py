"""The one version literal of specpilot."""

VERSION = "0.1.0"
