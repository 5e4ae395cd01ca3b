"""The Slurm lifecycle around the proxy: plans, steps, health, drain and verdict."""
