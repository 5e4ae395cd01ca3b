"""What the proxy costs: next to its peers (`tools/bench.py`), and against its recorded budget (`budget.py`)."""
