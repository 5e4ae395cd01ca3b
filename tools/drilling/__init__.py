"""The parts of the drills, from a TOML file to a verdict.

`spec` reads what a drill is, `day` invents the mixed day from a seed, `stage` starts replicas and dd-proxy and does to
them what the drill says, `runner` puts the load on meanwhile, `evidence` is all that was counted by clients, proxy and
replicas, `checks` judges it, `report` shows it.
"""
