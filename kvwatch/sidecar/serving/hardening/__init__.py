"""Overrides of private parts of uvicorn and the standard library that fault tests proved necessary."""
