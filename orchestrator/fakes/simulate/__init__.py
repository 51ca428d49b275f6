"""Boards, drafts and whole studies in virtual time: what a laptop without a GB10 cannot show."""
