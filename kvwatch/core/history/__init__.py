"""What an engine did over time: windows, integrals and regimes."""
