"""Tools that are run from the checkout: fake replicas, demo, load, drills and benchmark. Not installed."""
