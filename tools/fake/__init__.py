"""The parts of the fake replica; `tools/fake_backend.py` is its command."""
