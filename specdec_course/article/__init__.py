"""The article that the course grows from: its claims, and what settles each."""
