"""The running service: scrapes, keeps the states, serves them."""
