"""Training of drafts: what a generation never needs, from prompts and the target's own answers to finished weights."""
