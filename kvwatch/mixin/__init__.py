"""Renders committed files from the tables of the code, so that they can't drift apart."""
