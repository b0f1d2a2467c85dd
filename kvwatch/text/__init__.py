"""Words and numbers for people, the same on every surface. Pure, and independent of the rest of kvwatch."""
