"""The present state of the node's devices and containers, for commands, metrics and the page.

live.py takes a reading (reading.py); exposition.py makes Prometheus' text of it (metric_tables.py),
overview.py the data of the page. names.py, containers.py and docker_api.py find a container by its name;
driver_questions.py asks drivers with a deadline, samples.py for their samples. engine.py finds engines'
processes, agent_status.py asks the agent, node_metrics.py keeps a reading for scrapes. This package draws
nothing and changes nothing.
"""
