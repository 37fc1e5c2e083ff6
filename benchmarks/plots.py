"""Pictures of results."""
def steps(rows, name): pass
