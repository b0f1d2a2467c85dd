"""Words and numbers as people read them: the same on every surface. Knows nothing of kvwatch but its names."""
